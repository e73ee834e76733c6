"""What the journal's records mean, and what an engine's leader does with them at its start. Pure.

A leader writes Torn before the first byte may reach engine memory and Current once the engine carries the new
version's name, both in the order of a commit. ``at_start`` reads the last record together with what can still be
seen (the arenas' headers, the engine) and names one of four ways on:

    journal   engine              arenas of the journal       way on
    -------   -----------------   -------------------------   ----------------
    none      holds no version    (not looked at)             Fresh
    none      names a version     (not looked at)             PauseAndReseed
    Current   same life, same V   (not looked at)             Keep
    any       anything else       all Sealed with V           Reapply
    any       anything else       anything else               PauseAndReseed
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from weightsync.arena import ArenaState, Header
from weightsync.digests import BucketDigest
from weightsync.records import Record
from weightsync.version import Hex16, Hex32, Hex64, Version

_OURS = re.compile(r"(torn:)?[0-9a-f]{16}\.[0-9]+")


# What an engine is certified on before anything was published: its own checkpoint, as it found it.
BASE = Version(lineage="0" * 16, number=1, root="0" * 64)
UNKNOWN = "0" * 64  # the root of what is being written and nobody has decided


class JournalState(StrEnum):
    """What engine memory may hold."""

    TORN = "Torn"  # any mixture of the version and whatever was there before
    CURRENT = "Current"  # the version, whole, on all ranks


class JournalRank(Record):
    """One rank of the engine: the replica that it applies. arena: file name in the volume's folder of arenas."""

    rank: Annotated[int, Field(ge=0)]
    program: Hex32
    arena: Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^/]+$")]
    buckets: tuple[BucketDigest, ...]


class JournalWriter(Record):
    """One that was let into the engine's memory itself. rank: the engine's; key: the writer's; address: of its agent,
    "" where it is not known."""

    rank: Annotated[int, Field(ge=0)]
    grant: Hex32
    key: str
    address: str = ""


class Journal(Record):
    """The last step of the last commit.

    writers: in Direct mode, who was let in since: engine memory is Torn by them, and version is the one before.
    incarnation: the life of the engine that it was done to; programs: the decision's program roots, which a new
    coordinator asks for.
    """

    state: JournalState
    version: Version
    label: str = ""
    incarnation: str
    ranks: Annotated[tuple[JournalRank, ...], Field(min_length=1)]
    term: Annotated[int, Field(ge=0)]
    coordinator: str
    programs: dict[str, Hex64] = Field(default_factory=dict)
    writers: tuple[JournalWriter, ...] = ()

    @property
    def base(self) -> bool:
        """Of a certification on the base checkpoint: nothing was published to this engine."""
        return self.version.lineage == BASE.lineage

    @property
    def decided(self) -> bool:
        """Its version is one that a coordinator decided."""
        return not self.base and self.version.root != UNKNOWN


def opened(
    before: Journal | None, *, life: str, ranks: tuple[JournalRank, ...], writers: tuple[JournalWriter, ...],
    unreadable: Version | None = None,
) -> Journal:  # fmt: skip
    """What is on disk while these writers are let into the engine's memory: Torn, and the last version's name.

    What they write was decided by nobody, and may never be: the version before stays the one that is known. Where
    that one's record could not be read, ``unreadable`` is what is written now: no other life is taken for Fresh then.
    """
    if before is None:
        version = BASE if unreadable is None else unreadable
        return Journal(
            state=JournalState.TORN, version=version, incarnation=life, ranks=ranks, term=0, coordinator="",
            writers=writers,
        )  # fmt: skip
    return before.model_copy(update={"state": JournalState.TORN, "incarnation": life, "writers": writers})


class Written(Record):
    """Of a pod that is not its engine's leader. processes: by rank, the one into which a version was last let."""

    processes: dict[int, str] = Field(default_factory=dict)


class Decision(Record):
    """A coordinator decided: written before the first commit goes out. programs: program digest -> its root."""

    sync: Annotated[str, Field(min_length=1)]
    version: Version
    label: str = ""
    term: Annotated[int, Field(ge=0)]
    programs: dict[str, Hex64]


class TermSeen(Record):
    """coordinator: who held it, "" where its orders did not say."""

    term: Annotated[int, Field(ge=0)]
    coordinator: str = ""


class WishSeen(Record):
    """spec.transfer.mode of the resource that selects the engine."""

    mode: Literal["Auto", "Staged", "Direct"]


class Pairing(Record):
    """How far a Publisher's count is behind the other ranks': zero for all that began together."""

    nonce: Hex16
    offset: Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class EngineSeen:
    """What the engine says of itself right now."""

    weight_version: str
    incarnation: str


@dataclass(frozen=True)
class Keep:
    """The engine serves ``version`` whole, in the life that the journal speaks of: nothing is to be done."""

    version: Version


@dataclass(frozen=True)
class Reapply:
    """Pause, then apply ``version`` from the arenas here: no byte crosses the network.

    ranks: the journal's; grants: rank -> the grant that its arena was sealed under.
    """

    version: Version
    ranks: tuple[JournalRank, ...]
    grants: Mapping[int, str]
    reason: str


@dataclass(frozen=True)
class PauseAndReseed:
    """Torn or unknown means paused: the engine stays so until a sync has brought it a whole version."""

    reason: str


@dataclass(frozen=True)
class Fresh:
    """Nothing was ever applied: the engine holds its base checkpoint and the initial gate applies."""


Recovery = Keep | Reapply | PauseAndReseed | Fresh


def is_ours(weight_version: str) -> bool:
    """The engine names a version that an agent gave it."""
    return _OURS.fullmatch(weight_version) is not None


def at_start(journal: Journal | None, arenas: Mapping[int, Header], engine: EngineSeen | None) -> Recovery:
    """What to do after a restart of the agent.

    arenas: rank -> header of the arena file that the journal names, left out where it cannot be read.
    engine: None while it does not answer. Its life is then unknown, so nothing that it held can be kept.
    A journal that cannot be read is not None: its reader raises, and the caller takes PauseAndReseed.
    """
    if journal is None:
        if engine is not None and is_ours(engine.weight_version):
            return PauseAndReseed(f"the engine names version {engine.weight_version}, of which no journal is left")
        return Fresh()
    change = _changed(journal, engine)
    if change is None:
        return Keep(journal.version)
    problem = _unsealed(journal, arenas)
    if problem is None:
        grants = {rank.rank: arenas[rank.rank].grant for rank in journal.ranks}
        return Reapply(journal.version, journal.ranks, grants, change)
    return PauseAndReseed(f"{change}, and {problem}")


def _changed(journal: Journal, engine: EngineSeen | None) -> str | None:
    """Why the engine may hold something else than the journal's version; None where it holds exactly that."""
    name = journal.version.name
    if engine is None:
        return f"the engine that was given version {name} does not answer"
    if engine.incarnation != journal.incarnation:
        return f"the engine has restarted since it was given version {name}"
    if journal.state is JournalState.TORN:
        return f"the agent died while version {name} was applied"
    if engine.weight_version != name:
        return f"the engine names version {engine.weight_version or '(none)'} where the journal has {name}"
    return None


def _unsealed(journal: Journal, arenas: Mapping[int, Header]) -> str | None:
    """The first rank whose arena cannot give the journal's version again, and why."""
    for rank in journal.ranks:
        where = f"the arena of rank {rank.rank} ({rank.arena})"
        header = arenas.get(rank.rank)
        if header is None:
            return f"{where} cannot be read"
        if header.state is not ArenaState.SEALED or header.version is None:
            return f"{where} is {header.state.name.capitalize()}, not Sealed"
        if header.version != journal.version:
            return f"{where} holds version {header.version.name}"
        if header.program != rank.program:
            return f"{where} was filled by program {header.program}, not {rank.program}"
    return None
