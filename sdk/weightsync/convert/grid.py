"""Strided views of a block of memory, taken apart along the block's own dimensions. Pure integers, no torch.

A block is a run of elements that is thought of as a dense array, its grid. A view (offset, counts, strides) of it is
an axis-parallel box of that grid where each of its loops runs along one dimension, one step at a time. Most views of
weights are: slices, transpositions, stacks, halves. Where a loop takes longer steps the grid is refined (a dimension
of 6 becomes 3 x 2), where a loop runs over several dimensions it is split, and what is no box then is cut into boxes.
"""

from math import gcd, prod
from typing import NamedTuple

Shape = tuple[int, ...]
Box = tuple[tuple[int, int], ...]


class Irregular(Exception):
    """No set of boxes: too many pieces would be needed."""


class Loop(NamedTuple):
    """One dimension of a copy: how many steps, and how many elements each takes in the memory read and written."""

    steps: int
    read: int
    write: int


Loops = tuple[Loop, ...]


class Split(Exception):
    """A loop must be replaced by two, nested, before the view is a box. Carries the loops to go on with."""

    def __init__(self, loops: "Loops") -> None:
        super().__init__("split")
        self.loops = loops


class Refine(Exception):
    """A dimension of the grid must be cut in two: its extent becomes (extent // inner, inner).

    Where the grid is fixed, the view is to be cut instead.
    """

    def __init__(self, dimension: int, inner: int, cut: "Cut") -> None:
        super().__init__("refine")
        self.dimension = dimension
        self.inner = inner
        self.cut = cut


class Cut(Exception):
    """The view is several boxes: it must be cut into the first ``at`` steps of a loop, and the rest."""

    def __init__(self, index: int, at: int) -> None:
        super().__init__("cut")
        self.index = index
        self.at = at


class Place(NamedTuple):
    """A view as a box: where it starts along each dimension, and which dimension each loop runs along.

    along: for each loop a dimension, -1 where the loop stays on its element (a broadcast).
    """

    starts: tuple[int, ...]
    along: tuple[int, ...]


def dense(shape: Shape) -> Shape:
    """Strides, in elements, of a contiguous array."""
    return tuple(prod(shape[at + 1 :]) for at in range(len(shape)))


def place(shape: Shape, offset: int, loops: Loops, writes: bool) -> Place:
    """Where a view lies in the grid ``shape``. writes: judge the loops' write steps, else their read steps.

    Loops have more than one step each. Raises Split, Refine or Cut, after which it is to be asked again, and
    Irregular where the view is none of this memory.
    """
    strides = dense(shape)
    starts, rest = [], offset
    for extent, stride in zip(shape, strides, strict=True):
        at, rest = divmod(rest, stride)
        if at >= extent:
            raise Irregular
        starts.append(at)
    along: list[int] = []
    for index, loop in enumerate(loops):
        step = loop.write if writes else loop.read
        dimension = _dimension(shape, starts, loops, index, step) if step else -1
        if dimension >= 0 and dimension in along:
            raise Cut(index, loop.steps // 2)  # two loops along one dimension: a sum of steps is no box
        along.append(dimension)
    return Place(tuple(starts), tuple(along))


def _dimension(shape: Shape, starts: list[int], loops: Loops, index: int, step: int) -> int:
    """The dimension that one loop runs along."""
    count = loops[index].steps
    half = Cut(index, count // 2)
    strides = dense(shape)
    dimension = next((d for d, s in enumerate(strides) if s <= step and shape[d] > 1), None)
    if dimension is None:
        raise Irregular
    extent = shape[dimension]
    jump, odd = divmod(step, strides[dimension])
    if odd:
        raise half
    if jump > 1:
        raise half if extent % jump else Refine(dimension, jump, half)
    if starts[dimension] + count <= extent:
        return dimension
    # The loop runs over the end of its dimension, into the next outer one.
    inner = gcd(extent, starts[dimension], count)
    if inner == 1:
        raise Cut(index, extent - starts[dimension])
    raise Split(_nested(loops, index, inner))


def _nested(loops: Loops, index: int, inner: int) -> Loops:
    loop = loops[index]
    outer = Loop(loop.steps // inner, loop.read * inner, loop.write * inner)
    parts = (part for part in (outer, Loop(inner, loop.read, loop.write)) if part.steps > 1)
    return (*loops[:index], *parts, *loops[index + 1 :])


def halves(loops: Loops, read_at: int, write_at: int, cut: Cut) -> list[tuple[Loops, int, int]]:
    """The two views that a view is cut into: loops, and the elements where they start."""
    loop = loops[cut.index]
    views = []
    for first, count in ((0, cut.at), (cut.at, loop.steps - cut.at)):
        part = (Loop(count, loop.read, loop.write),) if count > 1 else ()
        rest = (*loops[: cut.index], *part, *loops[cut.index + 1 :])
        views.append((rest, read_at + first * loop.read, write_at + first * loop.write))
    return views


def overlap(a: Box, b: Box) -> Box | None:
    """What two boxes share."""
    shared = []
    for (start, stop), (first, last) in zip(a, b, strict=True):
        low, high = max(start, first), min(stop, last)
        if low >= high:
            return None
        shared.append((low, high))
    return tuple(shared)


def minus(a: Box, b: Box) -> list[Box]:
    """The parts of ``a`` outside ``b``, as disjoint boxes."""
    shared = overlap(a, b)
    if shared is None:
        return [a]
    parts, rest = [], list(a)
    for dimension, (low, high) in enumerate(shared):
        start, stop = rest[dimension]
        if start < low:
            parts.append((*rest[:dimension], (start, low), *rest[dimension + 1 :]))
        if high < stop:
            parts.append((*rest[:dimension], (high, stop), *rest[dimension + 1 :]))
        rest[dimension] = (low, high)
    return parts


def refined(box: Box, dimension: int, inner: int) -> list[Box]:
    """A box in a grid whose ``dimension`` became (extent // inner, inner): one box, or three where it cuts rows."""
    start, stop = box[dimension]
    first, head = divmod(start, inner)
    last, tail = divmod(stop, inner)
    spans: list[tuple[tuple[int, int], tuple[int, int]]] = []
    if first == last:
        spans.append(((first, first + 1), (head, tail)))
    else:
        if head:
            spans.append(((first, first + 1), (head, inner)))
            first += 1
        if first < last:
            spans.append(((first, last), (0, inner)))
        if tail:
            spans.append(((last, last + 1), (0, tail)))
    return [(*box[:dimension], *span, *box[dimension + 1 :]) for span in spans]


def volume(box: Box) -> int:
    """Elements of a box."""
    return prod(stop - start for start, stop in box)
