"""One arena of one engine rank: its file, its region in the receiving worker, and its protocol.target.Target."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from weightsync.arena import Arena
from weightsync.buckets import needed
from weightsync.convert.program import CopyProgram
from weightsync.digests import BucketDigest
from weightsync.errors import InputError, TransferError
from weightsync.wire.v1 import Region
from weightsync_agent.arenas.prefault import prefault
from weightsync_agent.journal.records import JournalRank
from weightsync_agent.protocol import target as t

log = structlog.get_logger(__name__)


class TargetArena:
    """The file is taken over where it lies there already, and stays when this is closed."""

    def __init__(self, program: CopyProgram, folder: Path, index: int) -> None:
        self.program = program
        self.path = folder / f"{program.layout.digest}-{program.rank}-{index}"
        self.machine = t.Target(program.rank, program.layout.digest, program.digest, needed(program))
        self.region: Region | None = None  # None while no worker has it registered
        self._arena: Arena | None = None
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Take over the file that is there, or make one; either with all its pages. Raises InputError: no room."""
        arena = self._reopen() or self._create()
        try:
            if not arena.allocated:  # who made the file may have met a full volume, or died, before it was
                await prefault(arena, [(0, arena.header.nbytes)])
        except BaseException:
            arena.close()
            raise
        self._arena = arena

    def _reopen(self) -> Arena | None:
        if not self.path.exists():
            return None
        try:
            arena = Arena.open(self.path, lock=True)
        except InputError as error:
            log.warning(
                "the arena in the volume cannot be used; a new one is made", path=str(self.path), why=str(error)
            )
            return None
        header = arena.header
        if header.program != self.program.digest or header.nbytes != self.program.layout.nbytes:
            arena.close()
            return None
        return arena

    def _create(self) -> Arena:
        layout = self.program.layout
        return Arena.create(self.path, layout=layout.digest, program=self.program.digest, nbytes=layout.nbytes)

    @property
    def arena(self) -> Arena:
        """The open arena. Raises TransferError before open()."""
        if self._arena is None:
            raise TransferError(f"rank {self.program.rank} has no arena yet")
        return self._arena

    def handle(self, event: object) -> list[object]:
        """Feed the machine."""
        actions = self.machine.handle(event, time.monotonic())
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return actions

    async def more(self, check: Callable[[], tuple[BucketDigest, ...]], seconds: float) -> tuple[BucketDigest, ...]:
        """What others may read by now; nothing where nothing is within that time.

        check: the machine's, asked again with each event. Raises Refused as it does.
        """
        until = time.monotonic() + seconds
        while not (found := check()):
            left = until - time.monotonic()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                break
        return found

    def seals(self, action: object) -> None:
        """Mark the file as the machine's action says."""
        match action:
            case t.WriteFilling(grant):
                self.arena.fill(grant)
            case t.Seal(grant, version):
                self.arena.seal(grant, version)

    @property
    def rank(self) -> t.RankArena:
        """What is in it, for the choice of the next one to fill."""
        return t.RankArena(self.machine.state, self.machine.version)

    def verified(self) -> tuple[BucketDigest, ...]:
        """The buckets that were verified in it, by offset."""
        return tuple(self.machine.verified[offset] for offset in sorted(self.machine.verified))

    def journal_rank(self) -> JournalRank:
        """What a journal must hold of it."""
        return JournalRank(
            rank=self.program.rank, program=self.program.digest, arena=self.path.name, buckets=self.verified()
        )

    def close(self) -> None:
        """Drop mapping and lock; the file stays."""
        if self._arena is not None:
            self._arena.close()
            self._arena = None
