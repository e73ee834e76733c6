"""A source rank's arenas: for each program one or two, filled in turn.

With two, version v+1 is filled while v is on the wire; the arena of the last decided version is kept as long as
the other one is free, since repairs are written from it.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from weightsync.arena import NO_GRANT, Arena
from weightsync.buckets import Bucket, Extent
from weightsync.convert.program import CopyProgram
from weightsync.digests import BucketDigest
from weightsync.version import Version, version_name
from weightsync_agent.arenas.sizing import check_room


@dataclass
class Slot:
    """One arena and what is in it. name: the version's, "" while that is not known or nothing is in it."""

    program: CopyProgram
    arena: Arena
    name: str = ""
    sealed: bool = False
    readers: int = 0  # orders whose routes may still read from it
    filling: bool = False
    cut: tuple[int, frozenset[str]] | None = None  # bucket limit and owned names that the buckets were cut for
    buckets: tuple[Bucket, ...] = ()
    digests: dict[int, BucketDigest] = field(default_factory=dict)

    @property
    def free(self) -> bool:
        """Nobody fills it or writes from it."""
        return not self.filling and not self.readers

    @property
    def complete(self) -> bool:
        """Every bucket is digested."""
        return self.cut is not None and len(self.digests) == len(self.buckets)


class ArenaPool:
    """All arenas of one source rank. changed: notified when a slot may have become free."""

    def __init__(self, folder: Path, rank: int, count: int, memory_limit: int | None) -> None:
        self._folder = folder
        self._rank = rank
        self._count = count
        self._limit = memory_limit
        self._slots: dict[str, list[Slot]] = {}
        self.changed = asyncio.Condition()

    def slots(self) -> list[Slot]:
        """All of them."""
        return [slot for slots in self._slots.values() for slot in slots]

    def find(self, program: str, lineage: str, number: int) -> Slot | None:
        """The slot that holds, or is being filled with, that version."""
        name = version_name(lineage, number)
        return next((slot for slot in self._slots.get(program, []) if slot.name == name), None)

    async def take(self, program: CopyProgram) -> Slot:
        """A slot to fill next, marked as being filled; waits while all are in use.

        Raises InputError where a new arena does not fit into the memory limit.
        """
        slots = self._slots.setdefault(program.digest, [])
        if len(slots) < self._count and not any(slot.free and not slot.sealed for slot in slots):
            slots.append(Slot(program, self._create(program, len(slots))))
        async with self.changed:
            await self.changed.wait_for(lambda: any(slot.free for slot in slots))
            slot = min((slot for slot in slots if slot.free), key=lambda slot: slot.sealed)
            slot.filling, slot.sealed, slot.name = True, False, ""
            slot.digests = {}
        slot.arena.fill(NO_GRANT)
        return slot

    def _create(self, program: CopyProgram, index: int) -> Arena:
        held = sum(slot.program.layout.nbytes for slot in self.slots())
        check_room(held + program.layout.nbytes, self._limit, f"arena {index} of program {program.digest}")
        path = self._folder / f"source-{self._rank}-{program.digest}-{index}"
        return Arena.create(path, layout=program.layout.digest, program=program.digest, nbytes=program.layout.nbytes)

    def prefault(self, slot: Slot, extents: list[Extent]) -> None:
        """Allocate a shard's pages once its extents are known."""
        slot.arena.prefault(extents)

    async def release(self, slot: Slot) -> None:
        """It is filled, or its filling was given up."""
        async with self.changed:
            slot.filling = False
            self.changed.notify_all()

    async def reading(self, slots: list[Slot], by: int) -> None:
        """Routes began (+1) or ended (-1) to read from these slots."""
        async with self.changed:
            for slot in slots:
                slot.readers += by
            self.changed.notify_all()

    def seal(self, slot: Slot, version: Version) -> None:
        """The decision named the bytes; the arena of the version before may be filled again."""
        slot.arena.seal(NO_GRANT, version)
        slot.sealed = True
        for other in self._slots[slot.program.digest]:
            if other is not slot:
                other.sealed = False

    def close(self) -> None:
        """Drop all mappings; the files stay."""
        for slot in self.slots():
            slot.arena.close()
