"""Stands for torch where loading it takes minutes: in an emulated guest. Over numpy, on a CPU, and no more of it than
the reference engine, the hook and the Publisher call; those are the real ones.

Nothing finds it but a process that has this folder's parent before its other paths. The contract suite holds the
reference engine over this to the answers that it gives over torch (tests/contract/test_light_tensors.py).
"""

import sys
import types
from typing import Any

from torch import nn
from torch.functions import (
    Generator,
    add,
    arange,
    cat,
    empty,
    equal,
    frombuffer,
    full,
    get_num_threads,
    inference_mode,
    log,
    matmul,
    no_grad,
    outer,
    rand,
    rsqrt,
    set_num_threads,
    tensor,
    zeros,
)
from torch.tensors import DTYPES, STRIDED, Tensor, device, dtype

__all__ = [
    "Generator", "Tensor", "add", "arange", "cat", "cuda", "device", "distributed", "dtype", "empty", "equal",
    "frombuffer", "full", "get_num_threads", "inference_mode", "log", "matmul", "nn", "no_grad", "outer", "rand",
    "rsqrt", "set_num_threads", "tensor", "zeros",
]  # fmt: skip
__version__ = "0+light"
strided = STRIDED


def __getattr__(name: str) -> dtype:
    """Types; those that numpy does not have are known by name, and no tensor has one."""
    if name in DTYPES or name.startswith(("bfloat", "float8", "float4", "complex", "uint")):
        return DTYPES.setdefault(name, dtype(name))
    raise AttributeError(f"the stand-in for torch has no {name}")


def _module(name: str, **members: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    return made


def _load_file(path: Any) -> dict[str, Tensor]:
    from safetensors.numpy import load_file

    return {name: Tensor(array) for name, array in load_file(path).items()}


cuda = _module("torch.cuda", is_available=lambda: False)
distributed = _module("torch.distributed", is_available=lambda: False, is_initialized=lambda: False)
_module("torch.testing")
_module("torch.testing._internal")
_module("torch.testing._internal.distributed")
_module("torch.testing._internal.distributed.fake_pg", FakeStore=object)
_module("safetensors.torch", load_file=_load_file, save_file=None)
