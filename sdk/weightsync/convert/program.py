"""The copy program: which region of which checkpoint tensor goes to which bytes of a layout. Plain data, pure."""

import hashlib
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from weightsync.bounds import DIMENSIONS, MANY, Offset, Rank
from weightsync.layout import ITEMSIZE, Layout
from weightsync.records import Record

Index = Offset
Dimensions = Field(max_length=DIMENSIONS)


class Piece(Record):
    """One strided copy: a box of the checkpoint tensor into the arena.

    box: (start, stop) for each dimension of the tensor; offset: byte of the arena's payload where the box's
    first element lands; strides: bytes between neighbours along each dimension there (a transposed
    parameter has them permuted); dtype: of the destination, a cast if the tensor's is another.
    """

    box: Annotated[tuple[tuple[Index, Index], ...], Dimensions]
    offset: Index
    strides: Annotated[tuple[Index, ...], Dimensions]
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of the box along each dimension."""
        return tuple(stop - start for start, stop in self.box)

    @property
    def span(self) -> tuple[int, int]:
        """[first, last) byte of the payload that the copy can touch."""
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.offset, self.offset + reach + ITEMSIZE[self.dtype]


class TensorCopies(Record):
    """All copies out of one checkpoint tensor. An empty list of pieces: the rank does not hold that tensor."""

    name: Annotated[str, Field(min_length=1, max_length=1024)]
    dtype: str
    shape: Annotated[tuple[Index, ...], Dimensions]
    pieces: Annotated[tuple[Piece, ...], MANY]


class CopyProgram(Record):
    """How one engine rank's replica is made. The layout is part of it, so a program stands alone.

    tensors are in checkpoint order; together: names that must be given to the same publish.
    """

    format: Literal[1] = 1
    rank: Rank = 0
    layout: Layout
    tensors: Annotated[tuple[TensorCopies, ...], MANY]
    together: Annotated[tuple[tuple[str, ...], ...], MANY] = ()

    @model_validator(mode="after")
    def _inside(self) -> "CopyProgram":
        names = set[str]()
        for tensor in self.tensors:
            if tensor.name in names:
                raise ValueError(f"tensor {tensor.name} appears twice")
            names.add(tensor.name)
            if tensor.dtype not in ITEMSIZE:
                raise ValueError(f"tensor {tensor.name}: dtype {tensor.dtype!r} is not known")
            for piece in tensor.pieces:
                self._check(tensor, piece)
        for group in self.together:
            missing = [name for name in group if name not in names]
            if missing:
                raise ValueError(f"together names {missing[0]}, which is no tensor of the program")
        return self

    def _check(self, tensor: TensorCopies, piece: Piece) -> None:
        where = f"tensor {tensor.name}, piece at {piece.offset}"
        if len(piece.box) != len(tensor.shape) or len(piece.strides) != len(tensor.shape):
            raise ValueError(f"{where}: {len(tensor.shape)} dimensions expected")
        if piece.dtype not in ITEMSIZE:
            raise ValueError(f"{where}: dtype {piece.dtype!r} is not known")
        for (start, stop), extent in zip(piece.box, tensor.shape, strict=True):
            if not start < stop <= extent:
                raise ValueError(f"{where}: [{start}, {stop}) is no region of {tensor.shape}")
        size = ITEMSIZE[piece.dtype]
        if piece.offset % size or any(stride % size for stride in piece.strides):
            raise ValueError(f"{where}: offset or strides are not multiples of {piece.dtype}'s {size} bytes")
        if piece.span[1] > self.layout.nbytes:
            raise ValueError(f"{where}: reaches byte {piece.span[1]} of a payload of {self.layout.nbytes}")

    @cached_property
    def digest(self) -> str:
        """16 bytes of blake2b over layout and copies, in hex: the identity of a rank's replica."""
        return hashlib.blake2b(self.canonical(), digest_size=16).hexdigest()
