"""Tied tensors of a state dict: one memory under two names, of which the checkpoint has only one."""

import torch
from torch import Tensor


def are_tied(one: object, other: object) -> bool:
    """Whether both are the same elements of the same memory: of sharded ones, the same shard of it.

    Only of use for tensors that live at the same time; those without an element here are never tied.
    """
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or type(one) is not type(other):
        return False
    if one.shape != other.shape or _spec(one) != _spec(other):
        return False
    a, b = _here(one), _here(other)
    return a.numel() > 0 and _memory(a) == _memory(b)


def _spec(tensor: Tensor) -> object:
    return getattr(tensor, "placements", None), getattr(tensor, "device_mesh", None)


def _here(tensor: Tensor) -> Tensor:
    """The shard that this rank holds; a whole tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    if to_local is None:
        return tensor
    with torch.no_grad():
        return to_local()  # type: ignore[no-any-return]


def _memory(tensor: Tensor) -> object:
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return object()  # equal to nothing
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
