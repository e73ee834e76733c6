"""Tensors over numpy's arrays: what reference engine, hook and Publisher do with torch's, on a CPU."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class dtype:  # noqa: N801 - torch's name
    """One of torch's; kind: numpy's, None for those that numpy does not have."""

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self.kind: np.dtype[Any] | None = np.dtype("?" if name == "bool" else name)
        except TypeError:
            self.kind = None
        self.itemsize = self.kind.itemsize if self.kind is not None else 0

    def __repr__(self) -> str:
        return f"torch.{self.name}"


NAMES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
DTYPES = {name: dtype(name) for name in NAMES}


class device:  # noqa: N801 - torch's name
    """The only one: the CPU."""

    type = "cpu"
    index = None

    def __init__(self, name: object = "cpu") -> None:
        if str(name) != "cpu":
            raise RuntimeError(f"{name}: there is only the CPU here")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device)

    def __hash__(self) -> int:
        return hash("cpu")

    def __str__(self) -> str:
        return "cpu"


CPU = device()
STRIDED = "torch.strided"


def raw(value: Any) -> Any:
    """The array of a tensor, anything else as it is; also inside an index."""
    if isinstance(value, Tensor):
        return value.a
    return tuple(map(raw, value)) if isinstance(value, tuple) else value


class Tensor:
    """a: the array, whose memory views share."""

    is_cuda = is_quantized = requires_grad = False
    device, layout = CPU, STRIDED

    def __init__(self, array: Any) -> None:
        self.a: Any = np.asarray(array)

    @property
    def dtype(self) -> dtype:
        return DTYPES[self.a.dtype.name]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.a.shape)

    @property
    def nbytes(self) -> int:
        return int(self.a.nbytes)

    @property
    def data(self) -> "Tensor":
        return Tensor(self.a)

    # --- places ---

    def data_ptr(self) -> int:
        return int(self.a.__array_interface__["data"][0])

    def element_size(self) -> int:
        return int(self.a.itemsize)

    @property
    def itemsize(self) -> int:
        return int(self.a.itemsize)

    def storage_offset(self) -> int:
        whole = self.a
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        return (self.data_ptr() - int(whole.__array_interface__["data"][0])) // self.itemsize

    def numel(self) -> int:
        return int(self.a.size)

    def dim(self) -> int:
        return int(self.a.ndim)

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.a.itemsize for step in self.a.strides)

    def is_contiguous(self) -> bool:
        return bool(self.a.flags.c_contiguous)

    def as_strided(self, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> "Tensor":
        reach = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1
        if reach > self.a.size:
            raise RuntimeError(f"{reach} elements are needed, {self.a.size} are there")
        steps = [step * self.a.itemsize for step in strides]
        return Tensor(np.lib.stride_tricks.as_strided(self.a[offset:], tuple(shape), steps))

    # --- the same bytes, seen otherwise ---

    def detach(self) -> "Tensor":
        return Tensor(self.a)

    cpu = resolve_neg = resolve_conj = detach

    def view(self, *shape: Any) -> "Tensor":
        if isinstance(shape[0], dtype):
            return Tensor(self.a.view(shape[0].kind))
        if not self.a.flags.c_contiguous:
            split = self.a.view()
            split.shape = _shape(shape)  # raises where it would copy
            return Tensor(split)
        return Tensor(self.a.reshape(_shape(shape)))

    def reshape(self, *shape: Any) -> "Tensor":
        return Tensor(self.a.reshape(_shape(shape)))

    def flatten(self, start: int = 0) -> "Tensor":
        return Tensor(self.a.reshape(*self.a.shape[:start], -1))

    def transpose(self, one: int, other: int) -> "Tensor":
        return Tensor(self.a.swapaxes(one, other))

    def permute(self, *order: Any) -> "Tensor":
        return Tensor(self.a.transpose(_shape(order)))

    def chunk(self, count: int, dim: int = 0) -> tuple["Tensor", ...]:
        return tuple(map(Tensor, np.split(self.a, count, axis=dim)))

    def numpy(self) -> Any:
        return self.a

    def tolist(self) -> Any:
        return self.a.tolist()

    def __getitem__(self, at: Any) -> "Tensor":
        return Tensor(self.a[raw(at)])

    def __setitem__(self, at: Any, value: Any) -> None:
        self.a[raw(at)] = raw(value)

    def __len__(self) -> int:
        return len(self.a)

    def __float__(self) -> float:
        return float(self.a.item())

    def __int__(self) -> int:
        return int(self.a.item())

    __index__ = __int__

    def __bool__(self) -> bool:
        return bool(self.a.item())

    item = __float__
    __hash__ = object.__hash__

    # --- other bytes ---

    def clone(self) -> "Tensor":
        return Tensor(self.a.copy())

    def contiguous(self) -> "Tensor":
        return Tensor(np.ascontiguousarray(self.a))

    def to(self, target: Any, *, non_blocking: bool = False) -> "Tensor":
        return Tensor(self.a.astype(target.kind, copy=False)) if isinstance(target, dtype) else self

    def float(self) -> "Tensor":
        return self.to(DTYPES["float32"])

    def double(self) -> "Tensor":
        return self.to(DTYPES["float64"])

    def copy_(self, source: "Tensor", non_blocking: bool = False) -> "Tensor":
        self.a[...] = source.a
        return self

    def repeat(self, *times: int) -> "Tensor":
        return Tensor(np.tile(self.a, times))

    def cos(self) -> "Tensor":
        return Tensor(np.cos(self.a))

    def sin(self) -> "Tensor":
        return Tensor(np.sin(self.a))

    def square(self) -> "Tensor":
        return Tensor(np.square(self.a))

    def mean(self, dim: int, keepdim: bool = False) -> "Tensor":
        return Tensor(self.a.mean(axis=dim, keepdims=keepdim, dtype=self.a.dtype))

    def triu(self, diagonal: int = 0) -> "Tensor":
        # Not numpy's own: it multiplies, and infinity times zero is no number.
        rows, columns = np.indices(self.a.shape)
        return Tensor(np.where(columns - rows >= diagonal, self.a, 0).astype(self.a.dtype))

    def softmax(self, dim: int) -> "Tensor":
        powers = np.exp(self.a - self.a.max(axis=dim, keepdims=True))
        return Tensor(powers / powers.sum(axis=dim, keepdims=True))

    def log_softmax(self, dim: int) -> "Tensor":
        less = self.a - self.a.max(axis=dim, keepdims=True)
        return Tensor(less - np.log(np.exp(less).sum(axis=dim, keepdims=True)))

    def argmax(self, dim: int | None = None) -> "Tensor":
        return Tensor(self.a.argmax(axis=dim))

    def gather(self, dim: int, index: "Tensor") -> "Tensor":
        return Tensor(np.take_along_axis(self.a, index.a, dim))

    def add_(self, other: Any) -> "Tensor":
        self.a += raw(other)
        return self


def _shape(given: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else given


def _binary(what: Callable[[Any, Any], Any], *, swapped: bool = False) -> Callable[[Tensor, Any], Tensor]:
    def apply(self: Tensor, other: Any) -> Tensor:
        left, right = (raw(other), self.a) if swapped else (self.a, raw(other))
        with np.errstate(over="ignore"):  # hashes wrap
            return Tensor(what(left, right))

    return apply


for _name in ("add", "sub", "mul", "truediv", "pow", "rshift", "and_", "xor"):
    _plain = _name.rstrip("_")
    setattr(Tensor, f"__{_plain}__", _binary(getattr(operator, _name)))
    setattr(Tensor, f"__r{_plain}__", _binary(getattr(operator, _name), swapped=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Tensor, f"__{_name}__", _binary(getattr(operator, _name)))
Tensor.__neg__ = lambda self: Tensor(-self.a)
