"""The copies out of checkpoint tensors, one by one and as series. Plain data, pure.

A model of a trillion parameters has over 100,000 checkpoint tensors, nearly all of them experts that differ in a
number of their names and in a place that rises evenly. A file holds such a run as one record, so that it is read in
milliseconds; what iterates over the tensors gets them one by one, made out when they are first asked for.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, overload

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from weightsync.bounds import DIMENSIONS, MANY, Offset
from weightsync.layout import ITEMSIZE
from weightsync.records import Record

MOST_TENSORS = 2**20  # of a program: seven times those of the largest model that is known
SHORTEST = 8  # tensors of a series: fewer are written out, which is easier to read
PLACE = "{}"  # where the number stands in a series' name

_NUMBER = re.compile(r"(?<![^.])(0|[1-9]\d{0,9})(?![^.])")  # a whole part between dots
_Dimensions = Field(max_length=DIMENSIONS)

Box = tuple[tuple[int, int], ...]
_Alike = tuple[str, str, str, tuple[int, ...], tuple[tuple[Box, tuple[int, ...], str], ...]]


class Piece(NamedTuple):
    """One strided copy: a box of the checkpoint tensor into the arena.

    box: (start, stop) for each dimension of the tensor; offset: byte of the arena's payload where the box's
    first element lands; strides: bytes between neighbours along each dimension there (a transposed
    parameter has them permuted); dtype: of the destination, a cast if the tensor's is another.
    """

    box: Box
    offset: int
    strides: tuple[int, ...]
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of the box along each dimension."""
        return tuple(stop - start for start, stop in self.box)

    @property
    def span(self) -> tuple[int, int]:
        """[first, last) byte of the payload that the copy can touch."""
        reach = sum((stop - start - 1) * s for (start, stop), s in zip(self.box, self.strides, strict=True))
        return self.offset, self.offset + reach + ITEMSIZE[self.dtype]


class TensorCopies(NamedTuple):
    """All copies out of one checkpoint tensor. An empty list of pieces: the rank does not hold that tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


class SeriesPiece(Record):
    """Piece of a series' first tensor. step: how many bytes further on each next tensor's lands."""

    box: Annotated[tuple[tuple[Offset, Offset], ...], _Dimensions]
    offset: Offset
    strides: Annotated[tuple[Offset, ...], _Dimensions]
    dtype: str
    step: Offset = 0


class Series(Record):
    """``count`` tensors that are alike; of more than one ``name`` has {} in place of first, first + 1, ..."""

    name: Annotated[str, Field(min_length=1, max_length=1024)]
    dtype: str
    shape: Annotated[tuple[Offset, ...], _Dimensions]
    pieces: Annotated[tuple[SeriesPiece, ...], MANY]
    first: Offset = 0
    count: Annotated[int, Field(ge=1, le=MOST_TENSORS)] = 1

    def names(self) -> Iterator[str]:
        """Of its tensors, in order."""
        if self.count == 1:
            yield self.name
            return
        before, _, after = self.name.partition(PLACE)
        for number in range(self.first, self.first + self.count):
            yield f"{before}{number}{after}"

    def tensor(self, index: int, name: str) -> TensorCopies:
        """The copies of its ``index``-th tensor, which is called ``name``."""
        pieces = tuple(Piece(p.box, p.offset + index * p.step, p.strides, p.dtype) for p in self.pieces)
        return TensorCopies(name, self.dtype, self.shape, pieces)

    def tensors(self) -> Iterator[TensorCopies]:
        """One by one."""
        for index, name in enumerate(self.names()):
            yield self.tensor(index, name)

    def problem(self, nbytes: int) -> str:
        """Why its copies cannot be made into a payload of ``nbytes``, in a sentence; "" where they can.

        Offsets rise evenly, so what holds for the first and the last tensor holds for all.
        """
        if self.count > 1 and self.name.count(PLACE) != 1:
            return f"series {self.name} of {self.count} tensors: {PLACE} must stand once in its name"
        if self.dtype not in ITEMSIZE:
            return f"tensor {self.name}: dtype {self.dtype!r} is not known"
        for piece in self.pieces:
            if problem := _problem(self, piece, nbytes):
                return f"tensor {self.name}, piece at {piece.offset}: {problem}"
        return ""


def _problem(series: Series, piece: SeriesPiece, nbytes: int) -> str:
    if len(piece.box) != len(series.shape) or len(piece.strides) != len(series.shape):
        return f"{len(series.shape)} dimensions expected"
    if piece.dtype not in ITEMSIZE:
        return f"dtype {piece.dtype!r} is not known"
    for (start, stop), extent in zip(piece.box, series.shape, strict=True):
        if not start < stop <= extent:
            return f"[{start}, {stop}) is no region of {series.shape}"
    size = ITEMSIZE[piece.dtype]
    if any(number % size for number in (piece.offset, piece.step, *piece.strides)):
        return f"offset, strides or step are not multiples of {piece.dtype}'s {size} bytes"
    last = Piece(piece.box, piece.offset + (series.count - 1) * piece.step, piece.strides, piece.dtype).span[1]
    return f"reaches byte {last} of a payload of {nbytes}" if last > nbytes else ""


class Copies(Sequence[TensorCopies]):
    """The tensors of a program, held as series."""

    def __init__(self, series: tuple[Series, ...]) -> None:
        self.series = series
        self._made: tuple[TensorCopies, ...] | None = None

    def _all(self) -> tuple[TensorCopies, ...]:
        if self._made is None:
            self._made = tuple(tensor for each in self.series for tensor in each.tensors())
        return self._made

    def __len__(self) -> int:
        return sum(each.count for each in self.series)

    @overload
    def __getitem__(self, index: int) -> TensorCopies: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TensorCopies]: ...
    def __getitem__(self, index: int | slice) -> TensorCopies | Sequence[TensorCopies]:
        return self._all()[index]

    def __iter__(self) -> Iterator[TensorCopies]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Copies) and self.series == other.series

    def __hash__(self) -> int:
        return hash(self.series)

    def __repr__(self) -> str:
        return f"Copies({len(self)} tensors in {len(self.series)} series)"


class AsCopies:
    """How pydantic reads and writes a field of Copies: series in JSON; from code also a sequence of TensorCopies."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """See AsCopies."""
        inner = handler.generate_schema(Annotated[tuple[Series, ...], MANY])
        return core_schema.no_info_before_validator_function(
            _given,
            core_schema.no_info_after_validator_function(_folded, inner),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda copies: copies.series, return_schema=inner
            ),
        )


def _given(value: object) -> object:
    if isinstance(value, Copies):
        return value.series
    if isinstance(value, tuple | list) and value and all(isinstance(each, TensorCopies) for each in value):
        return fold(value)
    return value


def _folded(series: tuple[Series, ...]) -> Copies:
    """A program has one form, however it was written down: what stands alone is folded here."""
    if sum(each.count for each in series) > MOST_TENSORS:
        raise ValueError(f"more than {MOST_TENSORS} tensors")
    single = [(at, each.tensor(0, each.name)) for at, each in enumerate(series) if each.count == 1]
    placed = [(at, each) for at, each in enumerate(series) if each.count > 1] + _fold(single)
    return Copies(tuple(each for _, each in sorted(placed, key=lambda pair: pair[0])))


_Member = tuple[int, int, TensorCopies]  # number in its name, position in the program


def fold(tensors: Iterable[TensorCopies]) -> tuple[Series, ...]:
    """Each run of tensors that are alike as one series, where its first member stood."""
    return tuple(each for _, each in sorted(_fold(enumerate(tensors)), key=lambda pair: pair[0]))


def last_number(name: str) -> tuple[str, int, str] | None:
    """(before, number, after): the last whole number between dots, by which tensors are put into series."""
    numbers = list(_NUMBER.finditer(name))
    if not numbers or PLACE in name:
        return None
    start, stop = numbers[-1].span()
    return name[:start], int(name[start:stop]), name[stop:]


def _fold(tensors: Iterable[tuple[int, TensorCopies]]) -> list[tuple[int, Series]]:
    """Series with the position of the first of their members."""
    folded: list[tuple[int, Series]] = []
    lines: defaultdict[_Alike, list[_Member]] = defaultdict(list)
    for at, tensor in tensors:
        numbered = last_number(tensor.name)
        if numbered is None:
            folded.append((at, _series([tensor])))
            continue
        before, number, after = numbered
        alike = tuple((piece.box, piece.strides, piece.dtype) for piece in tensor.pieces)
        lines[before, after, tensor.dtype, tensor.shape, alike].append((number, at, tensor))
    for (before, after, *_), line in lines.items():
        for run in _runs(sorted(line, key=lambda member: member[0])):
            if len(run) < SHORTEST:
                folded += [(at, _series([tensor])) for _, at, tensor in run]
            else:
                members = [tensor for _, _, tensor in run]
                series = _series(members, f"{before}{PLACE}{after}", run[0][0])
                folded.append((min(at for _, at, _ in run), series))
    return folded


def _runs(line: list[_Member]) -> Iterator[list[_Member]]:
    """Cut a line into runs of successive numbers whose pieces rise evenly."""
    run: list[_Member] = []
    steps: list[int] | None = None
    for member in line:
        if run:
            apart = [b.offset - a.offset for a, b in zip(run[-1][2].pieces, member[2].pieces, strict=True)]
            if member[0] == run[-1][0] + 1 and min(apart, default=0) >= 0 and steps in (None, apart):
                steps = apart
            else:
                yield run
                run, steps = [], None
        run.append(member)
    if run:
        yield run


def _series(members: Sequence[TensorCopies], name: str = "", first: int = 0) -> Series:
    head = members[0]
    after = members[1].pieces if len(members) > 1 else head.pieces
    return Series(
        name=name or head.name,
        dtype=head.dtype,
        shape=head.shape,
        pieces=tuple(
            SeriesPiece(box=a.box, offset=a.offset, strides=a.strides, dtype=a.dtype, step=b.offset - a.offset)
            for a, b in zip(head.pieces, after, strict=True)
        ),
        first=first,
        count=len(members),
    )
