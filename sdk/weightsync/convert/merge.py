"""From what was traced to a copy program: few strided pieces, a layout in checkpoint order, what is no copy. Pure.

A parameter is copied where every element of it comes unchanged, or by one cast, from a checkpoint tensor, or is zero
(an arena is zero where nothing is written). Where a value was computed, load_weights must make it. A parameter that
nothing writes, or only in part, is refused by name: the arena would carry no value for it into the engine. A constant
of the engine's own that nothing writes is left out: each engine gives it the same value, and keeps it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from weightsync.convert.block import BITS, CAST, Block, Computed, Constant, Region, Term, named
from weightsync.convert.fill import Move, join
from weightsync.convert.grid import Box, Cut, Irregular, Loop, Refine, Split, dense, halves, place, volume
from weightsync.convert.header import Header
from weightsync.convert.program import ByLoading, Piece, TensorCopies
from weightsync.errors import InputError
from weightsync.layout import ITEMSIZE, Layout, lay_out

MOST_PIECES = 4096  # of one tensor; more would be copied element by element

# By dtype: (bits of its mantissa, bits of its exponent). A wider one holds every value of a narrower one.
_FLOATS = {
    "float64": (52, 11), "float32": (23, 8), "float16": (10, 5), "bfloat16": (7, 8),
    "float8_e5m2": (2, 5), "float8_e4m3fn": (3, 4),
}  # fmt: skip


class Row(NamedTuple):
    """A parameter of the engine rank: its table row, before it has an offset. constant: the engine sets its value
    itself, unless the checkpoint does.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    constant: bool = False


class Merged(NamedTuple):
    """The parts of a CopyProgram. tensors: first those that go somewhere, by where; then the others."""

    layout: Layout
    tensors: tuple[TensorCopies, ...]
    together: tuple[tuple[str, ...], ...]
    by_loading: tuple[ByLoading, ...]


def merge(
    rows: Sequence[Row], blocks: Mapping[str, Block], checkpoint: Sequence[Header], joint: Iterable[frozenset[str]]
) -> Merged:
    """Make a program of a rank's parameters and their content. Raises InputError that names what is not covered.

    rows: in the model's order. The layout's order is that in which a trainer that yields the model's tensors in
    order completes the parameters, so that early buckets are full early.
    """
    rows = [row for row in rows if not row.constant or any(blocks[row.name].terms)]
    _covered(rows, blocks)
    layout = lay_out([(row.name, row.dtype, row.shape) for row in rows])
    at = {parameter.name: parameter.offset for parameter in layout.parameters}
    shapes = {known.name: known for known in checkpoint}
    groups = _computed(rows, blocks, shapes)
    loaded = {name for group in groups for name in group.tensors}
    moves: defaultdict[str, list[Move]] = defaultdict(list)
    order: dict[str, None] = {}
    for row in rows:
        here: defaultdict[str, list[Move]] = defaultdict(list)
        for term in blocks[row.name].terms:
            for name in named(term.source):
                order.setdefault(name)
            if isinstance(term.source, Region) and term.source.tensor not in loaded:
                known = shapes[term.source.tensor]
                here[known.name] += _moves(term, blocks[row.name], row, known, at[row.name])
        for name, parts in here.items():  # neighbours in one parameter only: others would stand between them
            moves[name] += join(parts)
    names = [*order, *(known.name for known in checkpoint if known.name not in order)]
    tensors = tuple(_copies(shapes[name], moves.get(name, [])) for name in names)
    return Merged(layout, tensors, _groups(joint), tuple(groups))


def _copies(known: Header, moves: list[Move]) -> TensorCopies:
    pieces = tuple(Piece(move.box, move.offset, move.strides, move.dtype) for move in moves)
    return TensorCopies(known.name, known.dtype, known.shape, pieces)


def _groups(joint: Iterable[frozenset[str]]) -> tuple[tuple[str, ...], ...]:
    """Sets that share a tensor become one."""
    merged: list[set[str]] = []
    for names in joint:
        meeting = [group for group in merged if group & names]
        merged = [group for group in merged if not group & names]
        merged.append(set(names).union(*meeting))
    return tuple(sorted(tuple(sorted(group)) for group in merged))


def _covered(rows: Sequence[Row], blocks: Mapping[str, Block]) -> None:
    empty, partly = [], []
    for row in rows:
        written = sum(volume(term.box) for term in blocks[row.name].terms)
        if prod(row.shape) and not written:
            empty.append(row.name)
        elif written < prod(row.shape):
            partly.append(f"{row.name} ({written} of {prod(row.shape)} elements)")
    if empty:
        raise InputError(
            f"load_weights writes nothing of the checkpoint into {_some(empty)}: the engine keeps what its model's "
            "constructor put there, which no publish can bring; use a checkpoint that holds these parameters"
        )
    if partly:
        raise InputError(
            f"load_weights writes only part of {_some(partly)}: the rest would be zero in the replica and is not in "
            "the engine; choose a tensor parallel size that divides the model's dimensions"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _computed(rows: Sequence[Row], blocks: Mapping[str, Block], shapes: Mapping[str, Header]) -> list[ByLoading]:
    """Groups of parameters and of the tensors that they are made of, closed: none meets another, or a copy."""
    reasons: dict[str, str] = {}
    for row in rows:
        found = (_reason(term, row, shapes) for term in blocks[row.name].terms)
        if reason := next(filter(None, found), ""):
            reasons[row.name] = reason
    if not reasons:
        return []
    feeds = {row.name: blocks[row.name].names() for row in rows}
    fed: defaultdict[str, list[str]] = defaultdict(list)
    for parameter, names in feeds.items():
        for name in names:
            fed[name].append(parameter)
    groups, done = [], set[str]()
    for row in rows:
        if row.name not in reasons or row.name in done:
            continue
        parameters, todo = set[str](), [row.name]
        while todo:
            parameter = todo.pop()
            if parameter not in parameters:
                parameters.add(parameter)
                todo += [other for name in feeds[parameter] for other in fed[name]]
        done |= parameters
        tensors = {name for parameter in parameters for name in feeds[parameter]}
        why = next(reasons[p] for p in sorted(parameters) if p in reasons)
        ordered = tuple(name for name in shapes if name in tensors)
        groups.append(ByLoading(tensors=ordered, parameters=tuple(sorted(parameters)), reason=why[:1024]))
    return groups


def _reason(term: Term, row: Row, shapes: Mapping[str, Header]) -> str:
    """Why a term is no copy, "" where it is one."""
    if isinstance(term.source, Computed):
        names = term.source.tensors
        return f"{row.name} is computed by {term.source.operation}" + (f" from {_some(names)}" if names else "")
    if isinstance(term.source, Constant):
        value = term.source.value
        return f"{row.name} is filled with {value} in part, and only zero needs no copy" if value else ""
    known = shapes[term.source.tensor]
    if landing(known.dtype, term.source.path, row.dtype) is None:
        steps = ", ".join(dtype for _, dtype in term.source.path)
        return f"{row.name} is {known.name} ({known.dtype}) converted by way of {steps}, which one cast does not make"
    try:
        _pieces(term, known)
    except Irregular:
        return f"{row.name} is an irregular selection of {known.name}"
    return ""


def landing(dtype: str, path: tuple[tuple[str, str], ...], target: str) -> str | None:
    """The dtype in which a tensor's elements are written, so that one cast has the effect of the whole path.

    None where there is none. The same bits under another name are written under the tensor's own.
    """
    if all(kind == BITS for kind, _ in path):
        return dtype if ITEMSIZE[dtype] == ITEMSIZE[target] else None
    if any(kind != CAST for kind, _ in path) or path[-1][1] != target:
        return None
    lossless = all(_holds(between, dtype) for _, between in path[:-1])
    return target if lossless else None


def _holds(wide: str, narrow: str) -> bool:
    if wide == narrow:
        return True
    if wide not in _FLOATS or narrow not in _FLOATS:
        return False
    return all(a >= b for a, b in zip(_FLOATS[wide], _FLOATS[narrow], strict=True))


def _moves(term: Term, block: Block, row: Row, known: Header, offset: int) -> Iterator[Move]:
    if not isinstance(term.source, Region):
        return
    dtype = landing(known.dtype, term.source.path, row.dtype)
    if dtype is None:
        return
    size = ITEMSIZE[dtype]
    steps = dense(block.shape)
    first = sum(start * step for (start, _), step in zip(term.box, steps, strict=True))
    for box, moved, strides in _pieces(term, known, steps):
        yield Move(box, offset + (first + moved) * size, tuple(step * size for step in strides), dtype)


def _pieces(
    term: Term, known: Header, steps: tuple[int, ...] | None = None
) -> list[tuple[Box, int, tuple[int, ...]]]:
    """A term as boxes of the checkpoint tensor: (box, elements further on in the parameter, strides there).

    Raises Irregular.
    """
    steps = steps or (1,) * len(term.box)
    loops = [
        Loop(stop - start, read, write)
        for (start, stop), read, write in zip(term.box, term.strides, steps, strict=True)
        if stop - start > 1
    ]
    found: list[tuple[Box, int, tuple[int, ...]]] = []
    todo = [(tuple(loops), term.start, 0)]
    shape = known.shape or (1,)
    while todo:
        rest, start, moved = todo.pop()
        try:
            at = place(shape, start, rest, writes=False)
            if -1 in at.along:
                still = at.along.index(-1)
                raise Cut(still, rest[still].steps // 2)  # one element into several places
        except Split as split:
            todo.append((split.loops, start, moved))
        except Refine as refine:  # the tensor's dimensions are as they are
            todo += halves(rest, start, moved, refine.cut)
        except Cut as cut:
            todo += halves(rest, start, moved, cut)
        else:
            box = [(first, first + 1) for first in at.starts]
            strides = [0] * len(shape)
            for loop, dimension in zip(rest, at.along, strict=True):
                box[dimension] = (at.starts[dimension], at.starts[dimension] + loop.steps)
                strides[dimension] = loop.write
            found.append((tuple(box)[: len(known.shape)], moved, tuple(strides)[: len(known.shape)]))
        if len(found) + len(todo) > MOST_PIECES:
            raise Irregular
    return found
