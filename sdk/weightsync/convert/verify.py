"""Compares what a program writes with what load_weights writes, byte for byte, on random tensors.

Done in units: parameters that share tensors, with these tensors. Only a unit's parameters have memory, and its
tensors exist one at a time, so that a model of any size is compared in the room of its largest unit. Units that are
alike (parameters and pieces equal but for the numbers in names and for where they lie) are one kind; one of each kind
is compared, or all.
"""

import mmap
import re
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

import torch

from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.errors import InputError
from weightsync.layout import ITEMSIZE, Layout, Parameter, lay_out

UNWRITTEN = 0xA5  # what load_weights finds in parameters: nobody's zero
# Elements after which a large tensor's values repeat: making them is the slow part. A prime, so that rows differ.
PERIOD = 2**20 + 7
_NUMBER = re.compile(r"\d+")
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FINITE = {1: 0x3F, 2: 0x3FFF, 4: 0x3FFFFFFF, 8: 0x3FFFFFFFFFFFFFFF}  # masks the exponent's highest bit, and the sign


class Unit(NamedTuple):
    """Parameters, and the tensors that fill these and no others."""

    parameters: tuple[Parameter, ...]
    tensors: tuple[TensorCopies, ...]


class Loads(NamedTuple):
    """load_weights on given bytes. bind: (layout, payload, its parameters); load: one call; release."""

    bind: Callable[[Layout, memoryview, frozenset[str]], None]
    load: Callable[[Iterable[tuple[str, torch.Tensor]]], None]
    release: Callable[[], None]


def units(program: CopyProgram) -> list[Unit]:
    """The program's units, by the place of their first parameter. What is made by loading is in none."""
    loaded = {name for group in program.by_loading for name in group.parameters}
    starts = [p.offset for p in program.layout.parameters]
    home: dict[str, int] = {}  # tensor -> unit
    unit: list[int] = list(range(len(starts)))

    def root(at: int) -> int:
        while unit[at] != at:
            unit[at] = unit[unit[at]]
            at = unit[at]
        return at

    tensors = [tensor for tensor in program.tensors if tensor.pieces]
    for tensor in tensors:
        for index in {_parameter(program.layout, starts, piece) for piece in tensor.pieces}:
            first = home.setdefault(tensor.name, index)
            unit[root(index)] = root(first)
    parameters: defaultdict[int, list[Parameter]] = defaultdict(list)
    feeding: defaultdict[int, list[TensorCopies]] = defaultdict(list)
    for index, parameter in enumerate(program.layout.parameters):
        if parameter.name not in loaded:
            parameters[root(index)].append(parameter)
    for tensor in tensors:
        feeding[root(home[tensor.name])].append(tensor)
    # What nothing feeds is zero: load_weights writes that without a tensor, which cannot be asked for.
    return [Unit(tuple(rows), tuple(feeding[at])) for at, rows in sorted(parameters.items()) if at in feeding]


def kinds(all_units: Sequence[Unit]) -> list[Unit]:
    """One unit of each kind: the last, since the first layers of a model are often special."""
    found = {_kind(unit): unit for unit in all_units}
    return list(found.values())


def compare(unit: Unit, loads: Loads) -> int:
    """Compare a unit; how many bytes. Raises InputError that names the first byte that differs."""
    layout = lay_out([(p.name, p.dtype, p.shape) for p in unit.parameters])
    pages = [mmap.mmap(-1, layout.nbytes) for _ in range(2)]  # anonymous: given back whole, however large
    theirs, ours = (torch.frombuffer(page, dtype=torch.uint8) for page in pages)
    theirs.fill_(UNWRITTEN)
    loads.bind(layout, memoryview(pages[0]), frozenset(p.name for p in unit.parameters))
    try:
        loads.load(_fed(unit, layout, ours))
    finally:
        loads.release()
    for row in layout.parameters:
        _same(row, theirs[row.offset : row.offset + row.nbytes], ours[row.offset : row.offset + row.nbytes])
    return sum(row.nbytes for row in layout.parameters)


def _fed(unit: Unit, layout: Layout, ours: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Random tensors, each copied by its pieces before load_weights gets it."""
    for tensor in unit.tensors:
        values = random_tensor(tensor)
        for piece in tensor.pieces:
            apply(piece, values, ours, _moved(piece, unit, layout))
        yield tensor.name, values


def _moved(piece: Piece, unit: Unit, layout: Layout) -> int:
    """Where a piece lands in a payload that holds nothing but the unit's parameters."""
    for old, new in zip(unit.parameters, layout.parameters, strict=True):
        if old.offset <= piece.offset < old.offset + old.nbytes:
            return piece.offset - old.offset + new.offset
    raise InputError(f"a copy to byte {piece.offset} lies in no parameter of its unit")


def apply(piece: Piece, values: torch.Tensor, payload: torch.Tensor, offset: int) -> None:
    """One copy, in the plainest way: what replay.py does fast."""
    size = ITEMSIZE[piece.dtype]
    whole = payload[: payload.numel() // size * size].view(getattr(torch, piece.dtype))
    shape = [stop - start for start, stop in piece.box]
    target = whole.as_strided(shape, [stride // size for stride in piece.strides], offset // size)
    target.copy_(values[tuple(slice(*span) for span in piece.box)])


def random_tensor(tensor: TensorCopies) -> torch.Tensor:
    """Bits that depend on the name alone; of floats those of finite values, so that casts are exact to compare."""
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, tensor.shape, generator=_seeded(tensor.name)).bool()
    word = _WORDS[dtype.itemsize]
    highest = 2 ** (8 * dtype.itemsize - 1) - 1 if dtype.itemsize > 1 else 255
    count = prod(tensor.shape)
    bits = torch.empty(min(count, PERIOD), dtype=word).random_(0, highest, generator=_seeded(tensor.name))
    if dtype.is_floating_point:
        bits &= _FINITE[dtype.itemsize]
    if count > PERIOD:
        bits = bits.repeat(-(-count // PERIOD))[:count]
    return bits.view(tensor.shape).view(dtype)


def _seeded(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def _same(row: Parameter, theirs: torch.Tensor, ours: torch.Tensor) -> None:
    if torch.equal(theirs, ours):
        return
    at = int((theirs != ours).to(torch.uint8).argmax())
    raise InputError(
        f"parameter {row.describe()}: the copy program writes {int(ours[at]):#04x} to byte {at}, load_weights "
        f"{int(theirs[at]):#04x}: the program is wrong and was not written; please report the model and the release"
    )


def _parameter(layout: Layout, starts: list[int], piece: Piece) -> int:
    return bisect_right(starts, piece.offset) - 1


def _kind(unit: Unit) -> object:
    """What is equal for units that are copied alike."""
    first = {p.name: p.offset for p in unit.parameters}
    low = min(first.values())
    rows = tuple((_NUMBER.sub("#", p.name), p.dtype, p.shape, p.offset - low) for p in unit.parameters)
    tensors = tuple(
        (_NUMBER.sub("#", t.name), t.dtype, t.shape, tuple(p._replace(offset=p.offset - low) for p in t.pieces))
        for t in unit.tensors
    )
    return rows, tensors
