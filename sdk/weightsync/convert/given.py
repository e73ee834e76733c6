"""What a trainer may give for a checkpoint tensor, and what to say of anything else."""

from functools import cache

import torch

from weightsync.convert.program import TensorCopies
from weightsync.errors import InputError

# Between these a trainer's tensor is converted, as the engine's own loading would; every other difference of dtypes
# (to or from integers and 8-bit floats) needs scales that a cast does not have.
_WIDE = frozenset({"float64", "float32", "float16", "bfloat16"})

_PLAIN = (torch.Tensor, torch.nn.Parameter)  # a subclass may keep its bytes elsewhere


def check(expected: TensorCopies, tensor: object) -> torch.Tensor:
    """The tensor. Raises InputError that says what is wrong with it, and what to yield instead."""
    name = expected.name
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"tensor {name} is a {type(tensor).__name__}: yield torch tensors")
    if hasattr(tensor, "full_tensor"):  # what publish() could not gather here (gather.py)
        raise InputError(
            f"tensor {name} is sharded over ranks that this one is none of: yield it on the ranks of its mesh only, "
            "as the tensors of their stage"
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise InputError(f"tensor {name} is {tensor.layout} on {tensor.device}: yield a dense tensor with data")
    if tuple(tensor.shape) != expected.shape:
        raise InputError(
            f"tensor {name} has shape {tuple(tensor.shape)}, the checkpoint {expected.shape}: "
            "yield whole tensors in the checkpoint's shape"
        )
    if type(tensor) in _PLAIN and _is_freed(tensor):
        # A copy would read address zero, and end the trainer's process.
        raise InputError(f"tensor {name} has no memory, it was freed (FSDP does so between steps): yield it gathered")
    given = _dtype_name(tensor.dtype)
    if given == expected.dtype or {given, expected.dtype} <= _WIDE:
        return tensor
    if any(piece.dtype != given for piece in expected.pieces):
        raise InputError(
            f"tensor {name} is {given}, the checkpoint {expected.dtype}: no cast makes one of the other, "
            "yield it as the checkpoint holds it"
        )
    return tensor


def _is_freed(tensor: torch.Tensor) -> bool:
    """Its storage has no memory. A view of it is so many bytes past address zero."""
    return tensor.data_ptr() == tensor.storage_offset() * tensor.itemsize and tensor.numel() > 0


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
