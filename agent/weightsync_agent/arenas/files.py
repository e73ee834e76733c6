"""The arena files of one source rank: made, marked, sealed with a record, reopened after a restart, removed.

Which of them is filled, and what is in it, is protocol.replica's affair; here an arena is a program and an index.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from weightsync.announcement import SourceRank
from weightsync.arena import NO_GRANT, Arena, ArenaState
from weightsync.buckets import Extent
from weightsync.convert.program import CopyProgram
from weightsync.digests import BucketDigest
from weightsync.errors import InputError
from weightsync.version import Version
from weightsync_agent.arenas.prefault import prefault
from weightsync_agent.arenas.record import SealedRecord, record_path
from weightsync_agent.arenas.sizing import Room
from weightsync_agent.journal.file import StateFile

log = structlog.get_logger(__name__)

_NAME = re.compile(r"source-(?P<rank>\d+)-(?P<program>[0-9a-f]{32})-(?P<index>\d+)")

Key = tuple[str, int]  # program, index


@dataclass(frozen=True)
class Cut:
    """What an arena was cut for: an upper bound of a bucket in bytes, and the tensors that the stage owns."""

    limit: int
    owned: frozenset[str]


@dataclass
class Held:
    """One arena. cut: the last; its pages are there since then. allocating: how many wait for its pages.

    fills: how often it was given to a publish: one that has lost it meanwhile must not say how it is cut.
    """

    arena: Arena
    cut: Cut | None = None
    allocating: int = 0
    fills: int = 0


class SourceArenas:
    """See the module. room: what all ranks of this agent hold together. removed: told the path of each that goes."""

    def __init__(self, folder: Path, rank: int, room: Room, removed: Callable[[Path], None] = lambda path: None):
        self.removed = removed
        self._folder = folder
        self._rank = rank
        self._room = room
        self._held: dict[Key, Held] = {}

    def path(self, key: Key) -> Path:
        """Where that arena lies, or would."""
        return self._folder / f"source-{self._rank}-{key[0]}-{key[1]}"

    def make(self, program: CopyProgram, index: int) -> None:
        """A new arena; no page of it is allocated yet. Raises InputError where it does not fit."""
        layout, path = program.layout, self.path((program.digest, index))
        self._room.take(layout.nbytes, f"arena {index} of program {program.digest}")
        try:
            self.removed(path)  # a worker may still map a file that was removed from here
            arena = Arena.create(path, layout=layout.digest, program=program.digest, nbytes=layout.nbytes)
        except OSError as error:
            self._room.give(layout.nbytes)
            raise InputError(f"{path}: cannot be made: {error.strerror}: make room in the volume") from error
        self._held[program.digest, index] = Held(arena)

    async def prepare(self, key: Key, part: Cut, extents: list[Extent]) -> None:
        """Allocate the pages that a stage fills, unless it was cut alike before.

        Raises InputError where there is no room, or the arena was removed, or given to another publish, meanwhile.
        """
        held = self._held.get(key)
        if held is None:
            raise InputError(f"{self.path(key)}: was removed before it was cut into buckets")
        fills = held.fills

        def ours() -> bool:
            return self._held.get(key) is held and held.fills == fills

        if held.cut is not None and (held.cut.limit, held.cut.owned) == (part.limit, part.owned):
            return
        held.allocating += 1
        try:
            await prefault(held.arena, extents, ours)
        finally:
            held.allocating -= 1
            if self._held.get(key) is not held and not held.allocating:
                held.arena.close()
        held.cut = part

    def fill(self, key: Key) -> None:
        """Before the first byte: the header says Filling, and whoever had it before does not have it any more."""
        held = self._held[key]
        held.fills += 1
        held.arena.fill(NO_GRANT)

    def has(self, key: Key) -> bool:
        """It was made, or found, and is still there."""
        return key in self._held

    def empty(self, key: Key) -> None:
        """What is in it is no version; one that could not be made holds none either."""
        if key in self._held:
            self._held[key].arena.empty()

    def seal(self, key: Key, who: SourceRank, version: Version, turn: int, buckets: tuple[BucketDigest, ...]) -> None:
        """Record first, then the header: a kill in between leaves an arena that is nothing.

        Raises InputError where the record cannot be written; the arena is then whole, and lost with the agent.
        """
        held = self._held[key]
        if held.cut is None:
            raise InputError(f"{held.arena.path}: was never cut into buckets, so nothing in it can be sealed")
        record = SealedRecord(
            who=who, program=key[0], index=key[1], version=version, turn=turn, limit=held.cut.limit,
            owned=tuple(sorted(held.cut.owned)), buckets=buckets,
        )  # fmt: skip
        StateFile(record_path(held.arena.path), SealedRecord).write(record)
        held.arena.seal(NO_GRANT, version)

    def remove(self, key: Key) -> None:
        """Give its memory back."""
        held = self._held.pop(key)
        self._room.give(held.arena.header.nbytes)
        self.removed(held.arena.path)
        _unlink(held.arena.path)
        if not held.allocating:  # a thread works on its file; whoever waits for it closes it
            held.arena.close()

    def reopen(self, records: Iterable[SealedRecord]) -> list[SealedRecord]:
        """Open what sealed_in() found for this rank; those whose arena is held by another process are left out."""
        opened = []
        for record in records:
            path = self.path((record.program, record.index))
            try:
                arena = Arena.open(path, lock=True)
            except InputError as error:
                log.warning("a sealed arena cannot be opened", why=str(error))
                continue
            self._room.found(arena.header.nbytes)
            cut = Cut(record.limit, frozenset(record.owned))
            self._held[record.program, record.index] = Held(arena, cut)
            opened.append(record)
        return opened

    def close(self) -> None:
        """Drop all mappings; the files stay."""
        held, self._held = list(self._held.values()), {}
        for each in held:
            if not each.allocating:  # see remove()
                each.arena.close()


def sealed_in(folder: Path) -> dict[int, list[SealedRecord]]:
    """By rank: records of arenas that a former life of the agent sealed. Every other arena of a source is removed.

    What was being filled then is no version, and its pages are memory that the next publish needs.
    """
    found: dict[int, list[SealedRecord]] = {}
    for path in sorted(folder.glob("source-*")):
        name = _NAME.fullmatch(path.name)
        if name is None:
            whole = _NAME.fullmatch(path.name.removesuffix(".sealed")) is not None
            if not whole or not path.with_suffix("").exists():
                path.unlink(missing_ok=True)  # half-made, or of an arena that is gone
            continue
        try:
            record = _sealed(path, int(name["rank"]), name["program"], int(name["index"]))
        except InputError as error:
            log.info("an arena of a former life is removed", arena=path.name, why=str(error))
            _unlink(path)
            continue
        found.setdefault(record.who.rank, []).append(record)
    return found


def _sealed(path: Path, rank: int, program: str, index: int) -> SealedRecord:
    """Its record. Raises InputError where header and record do not say the same, or it was not sealed."""
    with Arena.open(path) as arena:
        header = arena.header
    if header.state is not ArenaState.SEALED or header.version is None:
        raise InputError(f"{path}: {header.state.name.capitalize()}, not Sealed")
    record = StateFile(record_path(path), SealedRecord).read()
    if record is None:
        raise InputError(f"{path}: has no record")
    said = (record.who.rank, record.program, record.index, record.version)
    if said != (rank, program, index, header.version) or header.program != program:
        raise InputError(f"{path}: header and record speak of different replicas")
    if any(bucket.offset + bucket.nbytes > header.nbytes for bucket in record.buckets):
        raise InputError(f"{path}: its record has buckets beyond its {header.nbytes} bytes")
    return record


def _unlink(arena: Path) -> None:
    record_path(arena).unlink(missing_ok=True)
    arena.unlink(missing_ok=True)
