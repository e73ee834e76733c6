"""The transfer mode that the resource wishes, as last read: also with the API server away, also after a restart.

An engine whose agent was killed gets its version back from its own arenas, and that needs nobody else.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from weightsync.errors import WeightSyncError
from weightsync_agent.drivers.kept import Kept
from weightsync_agent.drivers.landing import Wish
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import WishSeen

log = structlog.get_logger(__name__)

ASK_SECONDS = 3.0  # for the API server to answer one who knows what it said last


class KeptWish:
    """One file in the volume. ask: the resource now; raises WeightSyncError, or lasts, where nobody answers."""

    def __init__(self, directory: Path, ask: Callable[[], Awaitable[Wish]]) -> None:
        self._ask = ask
        self._kept = Kept(StateFile(directory / "wish", WishSeen), "the transfer mode that is wished for")

    async def __call__(self) -> Wish:
        """What it says now, else what it said last; who never read it waits for the API server."""
        last = self._kept.value
        try:
            async with asyncio.timeout(ASK_SECONDS if last is not None else None):
                wish = await self._ask()
        except (WeightSyncError, TimeoutError) as error:
            taken = last.mode if last is not None else "Auto"
            why = str(error) or f"the API server did not answer within {ASK_SECONDS:.0f} s"
            log.warning("transfer.mode cannot be read", why=why, taken=taken)
            return taken
        self._kept.keep(WishSeen(mode=wish))
        return wish
