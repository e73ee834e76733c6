"""Which copies fill which buckets, and in which portions: the arithmetic of a replay. Pure, no torch.

A tensor's pieces are joined where they are one strided copy, then cut into portions at bucket boundaries, so that
a bucket can be written while the rest of a large tensor is still being copied. A bucket is full when, of every
tensor that touches it, the last portion that touches it has been copied. "Touches" is judged by the hull of a
portion [first byte, last byte], which may be wider than its bytes: a bucket is then reported later than it could
be, never sooner.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from weightsync.buckets import Bucket
from weightsync.convert.program import Piece, TensorCopies
from weightsync.errors import InputError
from weightsync.layout import ITEMSIZE

Box = tuple[tuple[int, int], ...]


class Move(NamedTuple):
    """One strided copy, as Piece, but cheap to make by the thousand: box of the tensor, bytes of the payload."""

    box: Box
    offset: int
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, piece: Piece) -> Self:
        """The whole piece as one copy. The stride of a dimension of one element means nothing, so it is zero."""
        strides = tuple(
            s if stop - start > 1 else 0 for (start, stop), s in zip(piece.box, piece.strides, strict=True)
        )
        return cls(piece.box, piece.offset, strides, piece.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along each dimension."""
        return tuple(stop - start for start, stop in self.box)

    @property
    def hull(self) -> tuple[int, int]:
        """[first, last) byte of the payload that the copy can touch."""
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.offset, self.offset + reach + ITEMSIZE[self.dtype]

    def rows(self, dimension: int, first: int, last: int) -> "Move":
        """The part [first, last) along one dimension, counted from the box's start."""
        start = self.box[dimension][0]
        box = (*self.box[:dimension], (start + first, start + last), *self.box[dimension + 1 :])
        return self._replace(box=box, offset=self.offset + first * self.strides[dimension])


class Portion(NamedTuple):
    """A copy that is made in one go, and the buckets (by index) that its tensor touches no more after it."""

    move: Move
    leaves: tuple[int, ...]


class BucketIndex:
    """Buckets by rising offset; disjoint, with gaps where other stages' bytes lie."""

    def __init__(self, buckets: Iterable[Bucket]) -> None:
        ordered = sorted(buckets, key=lambda bucket: bucket.offset)
        self.offsets = [bucket.offset for bucket in ordered]
        self.ends = [bucket.offset + bucket.nbytes for bucket in ordered]
        for end, offset in zip(self.ends, self.offsets[1:], strict=False):
            if offset < end:
                raise InputError(f"buckets overlap: one ends at {end}, the next begins at {offset}")

    def touched(self, hull: tuple[int, int]) -> range:
        """Indices of the buckets that share a byte with [first, last)."""
        return range(bisect_right(self.ends, hull[0]), bisect_left(self.offsets, hull[1]))

    def cuts(self, hull: tuple[int, int]) -> Sequence[int]:
        """The ends of buckets strictly inside [first, last)."""
        return self.ends[bisect_right(self.ends, hull[0]) : bisect_left(self.ends, hull[1])]


def join(moves: Iterable[Move]) -> list[Move]:
    """Merge copies that are neighbours along one dimension both in the tensor and in the payload.

    A trace of ``load_weights`` records a copy for each head or row; joined, they run as one. The copies of a
    program never write a byte twice, so their order is free.
    """
    joined = list(moves)
    for dimension in range(len(joined[0].box) if joined else 0):
        lines: defaultdict[tuple[object, ...], list[Move]] = defaultdict(list)
        for move in joined:
            across = move.box[:dimension] + move.box[dimension + 1 :]
            along = move.strides[:dimension] + move.strides[dimension + 1 :]
            lines[across, along, move.dtype].append(move)
        joined = [move for line in lines.values() for move in _run(line, dimension)]
    return sorted(joined, key=lambda move: move.offset)


def _run(line: list[Move], dimension: int) -> list[Move]:
    """Join a line of copies that differ only in [start, stop) along ``dimension`` and in their offsets."""
    line.sort(key=lambda move: move.box[dimension])
    runs: list[Move] = []
    for move in line:
        previous = runs[-1] if runs else None
        joint = _joint(previous, move, dimension) if previous else None
        if joint:
            runs[-1] = joint
        else:
            runs.append(move)
    return runs


def _joint(a: Move, b: Move, dimension: int) -> Move | None:
    """Both as one copy, or None where they are no neighbours."""
    (start, middle), (begin, stop) = a.box[dimension], b.box[dimension]
    if middle != begin:
        return None
    count = middle - start
    step, odd = divmod(b.offset - a.offset, count)
    if odd or step <= 0 or (count > 1 and step != a.strides[dimension]):
        return None
    if stop - begin > 1 and step != b.strides[dimension]:
        return None
    if step % ITEMSIZE[a.dtype]:
        return None
    box = (*a.box[:dimension], (start, stop), *a.box[dimension + 1 :])
    strides = (*a.strides[:dimension], step, *a.strides[dimension + 1 :])
    return a._replace(box=box, strides=strides)


def split(move: Move, buckets: BucketIndex) -> list[Move]:
    """Cut a copy along its outermost dimension, so that each part ends with the last row that begins in a bucket.

    A row that crosses a boundary stays whole, in the part before the boundary: that bucket is full after it.
    """
    hull = move.hull
    cuts = buckets.cuts(hull)
    long = [d for d, extent in enumerate(move.shape) if extent > 1]
    if not cuts or not long:
        return [move]
    outer = max(long, key=lambda d: move.strides[d])
    stride, extent = move.strides[outer], move.shape[outer]
    ends = sorted({min(-(-(cut - move.offset) // stride), extent) for cut in cuts} | {extent})
    return [move.rows(outer, first, last) for first, last in zip([0, *ends[:-1]], ends, strict=True)]


def portions(tensor: TensorCopies, buckets: BucketIndex) -> list[Portion]:
    """The copies out of one tensor in the order in which they are made. Raises InputError where one has no place."""
    for piece in tensor.pieces:
        if any(n > 1 and stride == 0 for n, stride in zip(piece.shape, piece.strides, strict=True)):
            raise InputError(
                f"tensor {tensor.name}: its copy to byte {piece.offset} writes the same bytes repeatedly"
            )
    if len(tensor.pieces) == 1:
        only = Move.of(tensor.pieces[0])
        if not buckets.cuts(only.hull):  # most of a hundred thousand experts' tensors: neither joined nor cut
            return [Portion(only, tuple(buckets.touched(only.hull)))]
    moves: list[Move] = []
    last: dict[int, int] = {}  # bucket -> index of the last portion after which it is not touched
    for move in join(map(Move.of, tensor.pieces)):
        parts = split(move, buckets)
        touches = {bucket: at for at, part in enumerate(parts, len(moves)) for bucket in buckets.touched(part.hull)}
        moves += parts
        for bucket in buckets.touched(move.hull):
            # A bucket between two rows is nobody's to write, but the stage's to report: with the last row.
            last[bucket] = touches.get(bucket, len(moves) - 1)
    leaves: defaultdict[int, list[int]] = defaultdict(list)
    for bucket, at in last.items():
        leaves[at].append(bucket)
    return [Portion(move, tuple(sorted(leaves[at]))) for at, move in enumerate(moves)]
