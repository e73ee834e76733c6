"""Functions of torch's namespace. Apart from the types' names, which are builtins' names, too."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torch.tensors import DTYPES, Tensor, dtype, raw


class no_grad:  # noqa: N801 - torch's name
    """Nothing is ever differentiated: a context and a decorator without effect."""

    def __init__(self, mode: bool = True) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function


inference_mode = no_grad


class Generator:
    """Numbers from a seed; others than torch's from the same one."""

    def manual_seed(self, seed: int) -> "Generator":
        self.source = np.random.default_rng(seed)
        return self


def _kind(of: dtype | None, otherwise: str = "float32") -> Any:
    return (of or DTYPES[otherwise]).kind


def tensor(data: Any, dtype: dtype | None = None) -> Tensor:
    found = np.asarray(data)
    if dtype is None and found.dtype == np.float64:
        return Tensor(found.astype(np.float32))
    return Tensor(found.astype(dtype.kind) if dtype is not None else found)


def zeros(*shape: Any, dtype: dtype | None = None, device: object = "cpu") -> Tensor:
    if str(device) != "cpu":
        raise RuntimeError(f"{device}: there is only the CPU here")
    return Tensor(np.zeros(shape[0] if isinstance(shape[0], (tuple, list)) else shape, _kind(dtype)))


def empty(*shape: Any, dtype: dtype | None = None) -> Tensor:
    return zeros(*shape, dtype=dtype)


def full(shape: Sequence[int], value: Any, dtype: dtype | None = None) -> Tensor:
    return Tensor(np.full(shape, value, _kind(dtype)))


def arange(*span: int, dtype: dtype | None = None) -> Tensor:
    return Tensor(np.arange(*span, dtype=_kind(dtype, "int64")))


def rand(shape: Sequence[int], generator: Generator) -> Tensor:
    return Tensor(generator.source.random(shape, np.float32))


def frombuffer(buffer: Any, dtype: dtype) -> Tensor:
    return Tensor(np.frombuffer(buffer, dtype.kind))


def cat(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    return Tensor(np.concatenate([part.a for part in parts], axis=dim))


def matmul(one: Tensor, other: Tensor) -> Tensor:
    return Tensor(one.a @ other.a)


def outer(one: Tensor, other: Tensor) -> Tensor:
    return Tensor(np.outer(one.a, other.a))


def rsqrt(x: Tensor) -> Tensor:
    return Tensor(1 / np.sqrt(x.a))


def log(x: Tensor) -> Tensor:
    return Tensor(np.log(x.a))


def equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one.a == other.a).all())


def add(one: Tensor, other: Any, out: Tensor) -> Tensor:
    np.add(one.a, raw(other), out=out.a)
    return out


def get_num_threads() -> int:
    return 1


def set_num_threads(count: int) -> None:
    pass
