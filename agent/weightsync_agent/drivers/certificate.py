"""Certifying an engine on its own checkpoint, before it is trusted with a version.

Its parameters are copied into the arenas, applied from there and read back, twice: whatever the engine repacks after
loading, moves at run time or merges with others shows as a difference. It is paused meanwhile, and the journal says
Torn before the first byte: an agent that dies in it finds the checkpoint in the sealed arenas and applies it again.
"""

import asyncio
import secrets
from collections.abc import Mapping

from weightsync.errors import EngineError
from weightsync_agent.drivers.commit_steps import check_readback
from weightsync_agent.drivers.ranks import EngineRanks
from weightsync_agent.engines.base import EngineAdapter
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import BASE, Journal, JournalState
from weightsync_agent.protocol.engine_leader import NOT_CERTIFIED

TIMES = 2  # an engine may repack its parameters the first time that they are loaded


class Certificate:
    """One certification of one life of the engine, which is paused."""

    def __init__(self, adapter: EngineAdapter, journal: StateFile[Journal], ranks: EngineRanks, life: str) -> None:
        self._adapter = adapter
        self._journal = journal
        self._ranks = ranks
        self._life = life
        self._id = secrets.token_hex(8)
        self.touched = False  # the engine's memory may be torn: it must not go on

    async def fresh(self) -> str:
        """Certify an engine that holds its checkpoint. "": it is; else why it cannot be, and it must stay paused.

        Raises Refused, reason Fencing, where a writer may still write to an arena: try again.
        """
        grants = {rank: secrets.token_hex(16) for rank in self._ranks.numbers}
        arenas = {rank: await target.lend() for rank, target in self._ranks.targets.items()}
        await self._others("Lend")
        for rank, arena in arenas.items():
            arena.fill(grants[rank])
        await self._others("Fill", grants)
        await self._adapter.snapshot(self._ranks.bases(grants))
        for rank, arena in arenas.items():
            arena.seal(grants[rank], BASE)
        await self._others("Seal", grants)
        self.touched = True
        torn = Journal(
            state=JournalState.TORN,
            version=BASE,
            incarnation=self._life,
            ranks=self._ranks.base_ranks(),
            term=0,
            coordinator="",
        )
        await asyncio.to_thread(self._journal.write, torn)
        return await self._apply(grants)

    async def _others(self, step: str, grants: Mapping[int, str] | None = None) -> None:
        """The same in the engine's other pods."""
        if self._ranks.crew is not None:
            await self._ranks.crew.certify(self._id, step, grants or {})

    async def interrupted(self) -> str:
        """An agent died in it: go on from the arenas. "" where the engine is certified now, with its checkpoint."""
        self.touched = True
        headers = {rank: (await target.lend()).header for rank, target in self._ranks.targets.items()}
        if self._ranks.crew is not None and self._ranks.remote:
            await self._others("Lend")
            found = await self._ranks.crew.headers()
            first = {rank: remote.rank.arenas[0] for rank, remote in self._ranks.remote.items()}
            headers |= {rank: found[rank, name] for rank, name in first.items()}
        if any(header.version != BASE for header in headers.values()):
            return "an agent died while it certified the engine, and the copy of its checkpoint is gone: restart it"
        return await self._apply({rank: header.grant for rank, header in headers.items()})

    async def _apply(self, grants: Mapping[int, str]) -> str:
        refs = self._ranks.bases(grants)
        try:
            for _ in range(TIMES):
                await self._adapter.apply(refs)
                await check_readback(self._adapter, refs)
        except EngineError as error:
            if error.reason != NOT_CERTIFIED:
                raise
            return str(error)
        await asyncio.to_thread(self._journal.remove)  # first: without the arenas it could not be obeyed
        self.touched = False
        for target in self._ranks.targets.values():
            await target.returned()
        await self._others("Return")
        return ""
