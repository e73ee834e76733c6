"""A source rank's arenas: for each program one or two, filled in turn.

With two, version v+1 is filled while v is on the wire; the arena of the last decided version is kept as long as
the other one is free, since repairs are written from it. An arena belongs to the publish that filled it until
that publish's outcome is known: with v in one and v+1 in the other, v+2 waits until one of them has ended. That
wait ends, since every publish gets an outcome, its deadline at the latest.
"""

import asyncio
from collections.abc import Iterable
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
    """One arena and what is in it. name: the version's, "" while that is not known or nothing is in it.

    owner: the publish that filled it last; whatever is done to a slot for a publish is done only while it owns it.
    """

    program: CopyProgram
    arena: Arena
    name: str = ""
    sealed: bool = False
    readers: int = 0  # orders whose routes may still read from it
    owner: str = ""
    filling: bool = False
    awaited: bool = False  # filled, and its publish has no outcome yet: its order may still come
    told: set[int] = field(default_factory=set)  # offsets that were said to be full
    cut: tuple[int, frozenset[str]] | None = None  # bucket limit and owned names that the buckets were cut for
    buckets: tuple[Bucket, ...] = ()
    digests: dict[int, BucketDigest] = field(default_factory=dict)

    @property
    def free(self) -> bool:
        """Nobody fills it, writes from it, or may still be ordered to."""
        return not self.filling and not self.awaited and not self.readers

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

    async def take(self, program: CopyProgram, owner: str) -> Slot:
        """A slot for the publish ``owner`` to fill, marked as being filled; waits while all are in use.

        Raises InputError where a new arena does not fit into the memory limit.
        """
        slots = self._slots.setdefault(program.digest, [])
        if len(slots) < self._count and not any(slot.free and not slot.sealed for slot in slots):
            slots.append(Slot(program, self._create(program, len(slots))))
        async with self.changed:
            await self.changed.wait_for(lambda: any(slot.free for slot in slots))
            slot = min((slot for slot in slots if slot.free), key=lambda slot: slot.sealed)
            slot.arena.fill(NO_GRANT)
            slot.filling, slot.awaited, slot.sealed, slot.name, slot.owner = True, False, False, "", owner
            slot.digests, slot.told = {}, set()
        return slot

    def _create(self, program: CopyProgram, index: int) -> Arena:
        held = sum(slot.program.layout.nbytes for slot in self.slots())
        check_room(held + program.layout.nbytes, self._limit, f"arena {index} of program {program.digest}")
        path = self._folder / f"source-{self._rank}-{program.digest}-{index}"
        return Arena.create(path, layout=program.layout.digest, program=program.digest, nbytes=program.layout.nbytes)

    def prefault(self, slot: Slot, extents: list[Extent]) -> None:
        """Allocate a shard's pages once its extents are known."""
        slot.arena.prefault(extents)

    async def filled(self, slot: Slot, owner: str, *, awaited: bool) -> None:
        """Its publish has filled it. awaited: that publish's outcome is not known yet, settle() will tell."""
        if slot.owner == owner:
            slot.filling, slot.awaited = False, awaited
            await self._notify()

    async def settle(self, slots: Iterable[Slot], owner: str) -> None:
        """The outcome of their publish is known: no order for it follows."""
        for slot in slots:
            if slot.owner == owner:
                slot.awaited = False
        await self._notify()

    async def give_up(self, slots: Iterable[Slot], owner: str) -> None:
        """Their filling was given up: what is in them is no version. At once, however long the notice takes."""
        for slot in slots:
            if slot.owner == owner:
                slot.arena.empty()
                slot.name, slot.owner = "", ""
                slot.filling = slot.awaited = False
        await self._notify()

    async def _notify(self) -> None:
        async with self.changed:
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
