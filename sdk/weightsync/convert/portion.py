"""One portion of a tensor, ready to be copied: its target in the payload, and how host memory fills it."""

import ctypes
from typing import NamedTuple

import torch

from weightsync.convert.digesting import BucketDigester
from weightsync.convert.fill import Move
from weightsync.errors import InputError
from weightsync.layout import ITEMSIZE


class Copy(NamedTuple):
    """One strided copy, and the buckets that its tensor touches no more after it.

    region: of the tensor, None for the whole; order: its dimensions by falling strides of the target, None where
    they are so already (a transposed parameter is one run of bytes all the same); address, dense: of a target that
    is one run of so many bytes, else zero; offset: of the target in the payload.
    """

    region: tuple[slice, ...] | None
    order: tuple[int, ...] | None
    target: torch.Tensor
    offset: int
    address: int
    dense: int
    leaves: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], move: Move, target: torch.Tensor, leaves: tuple[int, ...]) -> "Copy":
        """A copy out of a tensor of that shape."""
        region = None if move.shape == shape else tuple(slice(*span) for span in move.box)
        order = None
        if not target.is_contiguous():
            order = tuple(sorted(range(target.dim()), key=target.stride().__getitem__, reverse=True))
            target = target.permute(order)
        if not target.is_contiguous():
            return cls(region, order, target, move.offset, 0, 0, leaves)
        return cls(region, order, target, move.offset, target.data_ptr(), target.nbytes, leaves)

    @property
    def nbytes(self) -> int:
        """That it puts into the payload."""
        return self.target.nbytes

    def part(self, source: torch.Tensor) -> torch.Tensor:
        """The part of the source that is copied, in the target's shape."""
        part = source if self.region is None else source[self.region]
        return part if self.order is None else part.permute(self.order)

    def run(self, name: str, source: torch.Tensor, digests: BucketDigester) -> None:
        """Copy. When it returns, the bytes are in the arena. Raises InputError where torch cannot."""
        part = self.part(source)
        same = self.dense and part.dtype == self.target.dtype and part.is_contiguous()
        if same and _is_plain(part) and not _is_faster_in_threads(self.dense):
            self._move(part.data_ptr(), digests)
            return
        try:
            with torch.no_grad():
                self.target.copy_(part)  # from a device: returns when the bytes are here
        except RuntimeError as error:  # torch's only class: out of device memory, a lost device
            raise InputError(f"tensor {name} cannot be copied: {error}") from error

    def _move(self, address: int, digests: BucketDigester) -> None:
        target, source, move = self.address - self.offset, address - self.offset, ctypes.memmove
        # A foreign call lets go of the interpreter lock.
        digests.copy(self.offset, self.offset + self.dense, lambda at, end: move(target + at, source + at, end - at))


class Views:
    """Strided views of every dtype over one payload."""

    def __init__(self, view: memoryview) -> None:
        self._bytes: torch.Tensor | None = torch.frombuffer(view, dtype=torch.uint8)
        self._typed: dict[str, torch.Tensor] = {}

    @property
    def payload(self) -> torch.Tensor:
        """All of it as bytes."""
        if self._bytes is None:
            raise InputError("this replayer is closed")
        return self._bytes

    def target(self, name: str, move: Move) -> torch.Tensor:
        """Where the copy lands, in the shape of its box."""
        size = ITEMSIZE[move.dtype]
        strides = [stride // size for stride in move.strides]
        try:
            return self._as(move.dtype).as_strided(move.shape, strides, move.offset // size)
        except (RuntimeError, AttributeError) as error:
            raise InputError(f"tensor {name}: its copy to byte {move.offset} has no place: {error}") from error

    def _as(self, dtype: str) -> torch.Tensor:
        if dtype not in self._typed:
            size = ITEMSIZE[dtype]
            whole = self.payload[: self.payload.numel() // size * size]
            self._typed[dtype] = whole.view(getattr(torch, dtype))
        return self._typed[dtype]

    def drop(self) -> None:
        """Let go of the payload."""
        self._bytes = None
        self._typed.clear()


def _is_faster_in_threads(nbytes: int) -> bool:
    """Whether torch's own copy of so many bytes in host memory beats memmove.

    Measured on 16 cores, pieces of 1 to 512 MiB: in one thread memmove is 1.15 to 1.8 times as fast (torch reads the
    target's lines before it writes them), in four threads torch is 1.7 to 2.8 times as fast. torchrun gives each rank
    one thread unless told otherwise.
    """
    return nbytes >= 2**20 and torch.get_num_threads() > 2


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether data_ptr() is the bytes: a subclass may be a wrapper around others."""
    return tensor.device.type == "cpu" and type(tensor) is torch.Tensor
