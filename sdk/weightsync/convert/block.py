"""What memory holds: which element of which checkpoint tensor stands where. Pure, no torch.

A block's content is a set of disjoint terms. A term says of a box of the block's grid: it is this region of that
tensor, element by element; or a constant; or it was computed, by what and from which tensors.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from weightsync.convert import grid
from weightsync.convert.grid import Box, Cut, Irregular, Loops, Place, Refine, Shape, Split

MOST_PARTS = 10_000  # of one copy: more would be element by element
CAST, BITS = "cast", "bits"  # converted to a dtype | the same bits taken for one
Path = tuple[tuple[str, str], ...]


class Region(NamedTuple):
    """Elements of a checkpoint tensor. path: dtypes that they went through, after the tensor's own."""

    tensor: str
    path: Path = ()


class Constant(NamedTuple):
    """One value everywhere."""

    value: float


class Computed(NamedTuple):
    """No copy: the operation, and the checkpoint tensors that went in (perhaps none)."""

    operation: str
    tensors: tuple[str, ...]


Source = Region | Constant | Computed


class Term(NamedTuple):
    """A box of a block and what it holds. start, strides: of a Region, the tensor's element for the box's first
    corner and the step in the tensor along each of the block's dimensions.
    """

    box: Box
    source: Source
    start: int = 0
    strides: tuple[int, ...] = ()

    def within(self, box: Box) -> "Term":
        """The part of the term in a box inside its own."""
        if not isinstance(self.source, Region):
            return self._replace(box=box)
        moved = sum((new - old) * step for (new, _), (old, _), step in zip(box, self.box, self.strides, strict=True))
        return self._replace(box=box, start=self.start + moved)


class Part(NamedTuple):
    """What was read: for each loop of the copy [first, last), and the step in the tensor along it."""

    ranges: Box
    source: Source
    start: int
    strides: tuple[int, ...]


class Block:
    """One run of memory and its content so far. dtype: of its elements, by torch's name."""

    def __init__(self, shape: Shape, dtype: str) -> None:
        self.shape = tuple(extent for extent in shape if extent != 1) or (1,)
        self.dtype = dtype
        self.origin: tuple[str, Shape] | None = None
        # By the interval along the first dimension: experts of one parameter never meet, and there are many.
        self._rows: dict[tuple[int, int], list[Term]] = {}
        self._order: list[tuple[int, int]] = []
        self._mixed = False  # whether intervals overlap: then all are looked at

    @classmethod
    def of(cls, tensor: str, shape: Shape, dtype: str) -> "Block":
        """A checkpoint tensor: every element is its own."""
        block = cls(shape, dtype)
        box = tuple((0, extent) for extent in block.shape)
        if grid.volume(box):
            block.put(Term(box, Region(tensor), 0, grid.dense(block.shape)))
        block.origin = (tensor, shape)
        return block

    @property
    def fresh(self) -> "Block":
        """To read from: a checkpoint tensor with a grid that no earlier view has refined; others as they are."""
        return Block.of(*self.origin, self.dtype) if self.origin else self

    @property
    def terms(self) -> Iterator[Term]:
        """The content, by rising first dimension."""
        for key in self._order:
            yield from self._rows[key]

    @property
    def whole(self) -> Box:
        """The box of all elements."""
        return tuple((0, extent) for extent in self.shape)

    def put(self, term: Term) -> None:
        """Write: what stood in the box before is gone."""
        self.origin = None  # loaders do write into the tensors that they are given
        key = term.box[0]
        for other in self._touching(key):
            kept = []
            for old in self._rows[other]:
                shared = grid.overlap(old.box, term.box)
                kept += [old] if shared is None else [old.within(box) for box in grid.minus(old.box, shared)]
            self._set(other, [old for old in kept if old.box[0] == other])
            for old in kept:
                if old.box[0] != other:
                    self._add(old)
        self._add(term)

    def _touching(self, key: tuple[int, int]) -> list[tuple[int, int]]:
        """The intervals of the first dimension that meet ``key``."""
        if key in self._rows and not self._mixed:
            return [key]
        first = 0 if self._mixed else max(bisect_right(self._order, key) - 1, 0)
        last = bisect_left(self._order, (key[1], -1))
        return [other for other in self._order[first:last] if other[1] > key[0]]

    def _add(self, term: Term) -> None:
        key = term.box[0]
        if key not in self._rows:
            at = bisect_right(self._order, key)
            before = at > 0 and self._order[at - 1][1] > key[0]
            after = at < len(self._order) and self._order[at][0] < key[1]
            self._mixed = self._mixed or before or after
            self._rows[key] = []
            insort(self._order, key)
        self._rows[key].append(term)

    def _set(self, key: tuple[int, int], terms: list[Term]) -> None:
        if terms:
            self._rows[key] = terms
        else:
            del self._rows[key]
            self._order.remove(key)

    def refine(self, dimension: int, inner: int) -> None:
        """Cut a dimension of the grid in two, and every term with it."""
        terms = list(self.terms)
        self.shape = (
            *self.shape[:dimension],
            self.shape[dimension] // inner,
            inner,
            *self.shape[dimension + 1 :],
        )
        self._rows, self._order, self._mixed = {}, [], False
        for term in terms:
            for box in grid.refined(term.box, dimension, inner):
                self._add(_refine(term, box, dimension, inner))

    def read(self, place: Place, counts: tuple[int, ...]) -> Iterator[Part]:
        """The content of a view, in the coordinates of its loops. What was never written yields nothing."""
        box = [(start, start + 1) for start in place.starts]
        for count, dimension in zip(counts, place.along, strict=True):
            if dimension >= 0:
                box[dimension] = (place.starts[dimension], place.starts[dimension] + count)
        for term in self._near(box[0]):
            shared = grid.overlap(term.box, tuple(box))
            if shared is None:
                continue
            part = term.within(shared)
            ranges, strides = [], []
            for count, dimension in zip(counts, place.along, strict=True):
                if dimension < 0:
                    ranges.append((0, count))
                    strides.append(0)
                else:
                    start, stop = shared[dimension]
                    ranges.append((start - place.starts[dimension], stop - place.starts[dimension]))
                    strides.append(part.strides[dimension] if part.strides else 0)
            yield Part(tuple(ranges), part.source, part.start, tuple(strides))

    def _near(self, rows: tuple[int, int]) -> Iterator[Term]:
        for key in self._touching(rows):
            yield from self._rows[key]

    def write(self, place: Place, counts: tuple[int, ...], parts: Iterable[Part]) -> None:
        """Put what was read by the same loops into a view of this block."""
        for part in parts:
            box = [(start, start + 1) for start in place.starts]
            strides = [0] * len(self.shape)
            for (first, last), step, dimension in zip(part.ranges, part.strides, place.along, strict=True):
                start = place.starts[dimension]
                box[dimension] = (start + first, start + last)
                strides[dimension] = step
            kept = tuple(strides) if isinstance(part.source, Region) else ()
            self.put(Term(tuple(box), part.source, part.start, kept))

    def names(self) -> set[str]:
        """The checkpoint tensors that any of it comes from."""
        found: set[str] = set()
        for term in self.terms:
            found.update(named(term.source))
        return found


def named(source: Source) -> tuple[str, ...]:
    """The checkpoint tensors of a source."""
    if isinstance(source, Region):
        return (source.tensor,)
    return source.tensors if isinstance(source, Computed) else ()


def _refine(term: Term, box: Box, dimension: int, inner: int) -> Term:
    if not isinstance(term.source, Region):
        return term._replace(box=box)
    step = term.strides[dimension]
    strides = (*term.strides[:dimension], step * inner, step, *term.strides[dimension + 1 :])
    (low, _), (start, _) = box[dimension], box[dimension + 1]
    moved = (low * inner + start - term.box[dimension][0]) * step
    return Term(box, term.source, term.start + moved, strides)


def align(
    loops: Loops, source: Block, read_at: int, target: Block, write_at: int
) -> Iterator[tuple[Loops, Place, Place]]:
    """Cut a copy into parts that are boxes in both blocks, and refine both grids on the way.

    A part is to be read and written before the next is asked for: a place holds for the grid as it is then.
    Raises Irregular where there would be more than MOST_PARTS.
    """
    todo = [(tuple(loop for loop in loops if loop.steps > 1), read_at, write_at)]
    asked = 0
    while todo:
        loops, read_at, write_at = todo.pop()
        asked += 1
        if asked > MOST_PARTS:
            raise Irregular
        at = source
        try:
            read = grid.place(source.shape, read_at, loops, writes=False)
            at = target
            write = grid.place(target.shape, write_at, loops, writes=True)
        except Split as split:
            todo.append((split.loops, read_at, write_at))
        except Refine as refine:
            at.refine(refine.dimension, refine.inner)
            todo.append((loops, read_at, write_at))
        except Cut as cut:
            todo += grid.halves(loops, read_at, write_at, cut)
        else:
            yield loops, read, write
