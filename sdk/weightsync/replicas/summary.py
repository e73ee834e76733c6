"""What was found out about each engine rank, to be shown to people and programs. Pure."""

from weightsync.convert.program import CopyProgram
from weightsync.records import Record

FILE = "summary.json"


class Loaded(Record):
    """Parameters that no copy makes. tensors: how many go in."""

    parameters: tuple[str, ...]
    tensors: int
    reason: str


class RankSummary(Record):
    """One rank. tensors: of the checkpoint; held: those with a copy into this rank; checked: parameters whose bytes
    were compared with load_weights; seconds: of building, tracing and comparing, as they were when it was made.
    """

    rank: int
    file: str
    program: str
    layout: str
    parameters: int
    tensors: int
    held: int
    pieces: int
    nbytes: int
    together: int
    by_loading: tuple[Loaded, ...] = ()
    checked: int = 0
    build_seconds: float = 0
    trace_seconds: float = 0
    check_seconds: float = 0
    cached: bool = False


class Summary(Record):
    """All ranks of one engine. pure: every parameter of every rank is copied, nothing is left to load_weights."""

    model: str
    engine: str
    pure: bool
    seconds: float
    ranks: tuple[RankSummary, ...]


def summarise(program: CopyProgram, file: str, checked: int, seconds: tuple[float, float, float]) -> RankSummary:
    """The row of a program that was just made."""
    tensors = list(program.tensors)
    return RankSummary(
        rank=program.rank,
        file=file,
        program=program.digest,
        layout=program.layout.digest,
        parameters=len(program.layout.parameters),
        tensors=len(tensors),
        held=sum(bool(tensor.pieces) for tensor in tensors),
        pieces=sum(len(tensor.pieces) for tensor in tensors),
        nbytes=program.layout.nbytes,
        together=len(program.together),
        by_loading=tuple(
            Loaded(parameters=group.parameters, tensors=len(group.tensors), reason=group.reason)
            for group in program.by_loading
        ),
        checked=checked,
        build_seconds=round(seconds[0], 3),
        trace_seconds=round(seconds[1], 3),
        check_seconds=round(seconds[2], 3),
    )
