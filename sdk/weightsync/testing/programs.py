"""Copy programs for tests. Pure."""

from collections.abc import Mapping

from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.layout import ITEMSIZE, lay_out


def dense_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a contiguous array."""
    strides, step = [0] * len(shape), itemsize
    for d in reversed(range(len(shape))):
        strides[d], step = step, step * shape[d]
    return tuple(strides)


def plain_program(table: Mapping[str, tuple[str, tuple[int, ...]]], rank: int = 0) -> CopyProgram:
    """A program that takes every tensor as it is. table: name -> (dtype, shape)."""
    layout = lay_out([(name, dtype, shape) for name, (dtype, shape) in table.items()])
    tensors = []
    for p in layout.parameters:
        box = tuple((0, extent) for extent in p.shape)
        piece = Piece(box=box, offset=p.offset, strides=dense_strides(p.shape, ITEMSIZE[p.dtype]), dtype=p.dtype)
        pieces = (piece,) if p.nbytes else ()
        tensors.append(TensorCopies(name=p.name, dtype=p.dtype, shape=p.shape, pieces=pieces))
    return CopyProgram(rank=rank, layout=layout, tensors=tuple(tensors))
