"""What an engine must offer to be kept current, and the records that cross that line. No I/O here."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import Field

from weightsync.layout import Layout
from weightsync.records import Record, WireRecord
from weightsync.version import Hex32, Hex64
from weightsync_agent.engines.seed import Seed

PauseMode = Literal["Abort", "Retract", "InPlace"]

UNSET = (1.0, -1.0)  # a constant of SGLang's that no checkpoint has set: after, and before its post-load step


class EngineInfo(Record):
    """What the engine says of itself. weight_version: its name of what it serves; ranks: tp x pp processes; nodes:
    pods.

    refusal: why it cannot be fed, a sentence that names the setting; "" where it can.
    """

    weight_version: str
    server_version: str
    model_path: str = ""
    tp_size: Annotated[int, Field(ge=1)] = 1
    pp_size: Annotated[int, Field(ge=1)] = 1
    nodes: Annotated[int, Field(ge=1)] = 1
    refusal: str = ""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of its processes."""
        return tuple(range(self.tp_size * self.pp_size))


class Capabilities(Record):
    """What this engine's release can do. begin_end: weight-update sessions; flush_with_waiting: the cache can be
    flushed while requests wait; keys: which keys it is called with ("", "api", "admin")."""

    begin_end: bool
    flush_with_waiting: bool
    keys: Literal["", "api", "admin"] = ""


class LiveParameter(WireRecord):
    """One parameter of the running model. tied: the earlier parameter with the very same memory; constant: the value
    of a scalar that SGLang sets where the checkpoint does not, None of all others.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool
    nbytes: int
    device: str
    tied: str = ""
    constant: float | None = None


class Description(WireRecord):
    """One rank's process. incarnation: its pid and start time.

    repacked: which of its parameters hold other bytes after loading than the checkpoint's, "" where none do, or
    where the engine's weight-update sessions undo and redo that; problem: of a rank in another pod, whose agent has
    compared it with its layout and keeps the parameters to itself.
    """

    rank: int
    incarnation: str
    parameters: tuple[LiveParameter, ...]
    repacked: str = ""
    problem: str = ""


class Pinned(WireRecord):
    """The rank mapped its arena, and pinned it where it has CUDA."""

    rank: int
    nbytes: int
    seconds: float
    pinned: bool


class Applied(WireRecord):
    """The rank copied its arena into its parameters. unpinned: why it was slow.

    Of seconds, copy_seconds is the copy, and post_load_seconds what derives further tensors.
    """

    rank: int
    nbytes: int
    seconds: float
    copy_seconds: float = 0.0
    post_load_seconds: float = 0.0
    pinned: bool = False
    unpinned: str = ""
    post_load: bool = False


class Snapshot(WireRecord):
    """The rank copied its parameters into its arena."""

    rank: int
    nbytes: int
    seconds: float


class ReadBack(WireRecord):
    """What stands in the rank's parameters. equal: all bytes are the arena's, None where none was named."""

    rank: int
    equal: bool | None = None
    difference: str = ""
    digests: dict[str, str] = Field(default_factory=dict)
    nbytes: int = 0
    seconds: float = 0.0


class ArenaRef(Record):
    """One rank's replica, by paths as the engine's container sees them.

    grant and root must be the sealed header's; incarnation: the process that is meant, "" for whichever runs.
    """

    rank: Annotated[int, Field(ge=0)]
    arena: Path
    program: Path
    layout: Hex32
    grant: Hex32
    root: Hex64
    incarnation: str = ""


class EngineAdapter(Protocol):
    """One engine. Every method raises EngineError with the engine's own words, its reason and whether to retry.

    describe, pin, snapshot, apply and readback run inside the engine, between two of its batches. While it serves,
    they must stand within ``standstill()``: SGLang would otherwise let all running requests end first.
    """

    async def info(self) -> EngineInfo:
        """What it says of itself. Not while it is silent: EngineError, reason EngineUnreachable."""

    async def weight_version(self) -> str:
        """Its name of what it serves: cheap enough to be asked every second."""

    async def ready(self) -> None:
        """Return once it has generated a token and is past its own warm-up; EngineError until then.

        To be asked before the first pause, and not on a paused engine: it would wait for the pause's end.
        """

    async def capabilities(self) -> Capabilities:
        """Probed once per incarnation (see ``forget``)."""

    async def seed(self, rank: int) -> Seed | None:
        """Where the rank's parameters lie, asked anew; None where the engine registered none to be written to."""

    def forget(self) -> None:
        """The engine has begun a new life: what was probed of the old one is void."""

    def standstill(self) -> AbstractAsyncContextManager[None]:
        """Stop a serving engine between two batches, go on afterwards; its requests lose nothing."""

    async def describe(self, ranks: Sequence[int]) -> tuple[Description, ...]:
        """The live parameters of these ranks, in their order."""

    async def pin(self, arenas: Sequence[ArenaRef]) -> tuple[Pinned, ...]:
        """Map and pin, long before the first pause: pinning takes longer than a copy."""

    async def snapshot(self, arenas: Sequence[ArenaRef]) -> tuple[Snapshot, ...]:
        """Every rank copies its parameters into its arena, which is Filling under that grant."""

    async def pause(self, mode: PauseMode) -> None:
        """No token is generated from here on. Also on an engine that is paused already."""

    async def set_version(self, name: str) -> None:
        """What it calls its weights, without aborting a request."""

    async def begin(self) -> None:
        """Open a weight-update session; one that a dead agent left open is closed first."""

    async def apply(self, arenas: Sequence[ArenaRef]) -> tuple[Applied, ...]:
        """Every rank copies its sealed arena into its parameters. Only on a paused engine."""

    async def end(self) -> None:
        """Close the weight-update session."""

    async def flush(self, deadline_seconds: float) -> None:
        """Drop what the old weights left in the KV cache; refusals are retried until the deadline."""

    async def resume(self) -> None:
        """Generate again."""

    async def readback(
        self, arenas: Sequence[ArenaRef], *, digests: bool = False, parameters: Sequence[str] = ()
    ) -> tuple[ReadBack, ...]:
        """Compare the parameters with the arenas, byte for byte. digests: blake2b-128 of each parameter, too."""


def repacked_problem(description: Description) -> str:
    """Why a rank that repacks its parameters cannot be fed; "" where it does not, or its engine can undo it."""
    if not description.repacked:
        return ""
    return (
        f"rank {description.rank}: {description.repacked}, and this release of SGLang has no weight-update sessions "
        "to undo that (/begin_weight_update): serve an unquantised model, or a release that has them"
    )


def description_problem(description: Description, layout: Layout) -> str:
    """The first difference between a running rank and the layout that is meant for it, in a sentence; "": none.

    The hook checks the same again before it copies; here it is known before anything is planned.
    """
    live = {p.name: p for p in description.parameters}
    where = f"rank {description.rank}"
    if repacked := repacked_problem(description):
        return repacked
    for row in layout.parameters:
        if row.name not in live:
            return f"{where}: {row.describe()} is in the layout and no parameter of the engine"
        parameter = live[row.name]
        if (row.dtype, row.shape) != (parameter.dtype, parameter.shape):
            return f"{where}: {row.describe()} in the layout, {parameter.dtype} {parameter.shape} in the engine"
        if not parameter.contiguous:
            return f"{where}: parameter {row.name} is not contiguous in the engine: such are refused"
    filled = {live[row.name].tied or row.name for row in layout.parameters}
    unfilled = (_unfilled(p) for p in description.parameters if (p.tied or p.name) not in filled)
    found = next(filter(None, unfilled), "")
    return found and f"{where}: {found}"


def _unfilled(parameter: LiveParameter) -> str:
    """Why a parameter without a row is a difference, "" where it is none: SGLang set its own constant itself."""
    if parameter.constant in UNSET:
        return ""
    if parameter.constant is not None:
        return (
            f"{parameter.name} is {parameter.constant} in the engine, set by its own checkpoint, and no tensor of "
            "the layout's fills it: serve a checkpoint without it, or make the layout of one that has it"
        )
    return f"{parameter.name} {parameter.dtype} {parameter.shape} of the engine is in no row of the layout"
