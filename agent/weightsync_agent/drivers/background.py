"""Work that nobody awaits: kept alive until done, its failure logged and counted, never lost."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from weightsync.errors import WeightSyncError
from weightsync_agent.observability import metrics

log = structlog.get_logger(__name__)


class Background:
    """The tasks of one part of the agent."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it to its end. The task is the caller's to cancel, not to keep alive."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        reason = error.reason if isinstance(error, WeightSyncError) else type(error).__name__
        metrics.ERRORS.labels(part=self._part, reason=reason).inc()
        if isinstance(error, WeightSyncError):
            log.warning("background work failed", part=self._part, reason=reason, why=str(error))
        else:
            log.error("background work failed", part=self._part, why=str(error), exc_info=error)

    async def close(self) -> None:
        """Cancel what still runs, and wait for it; also for what that begins as it ends."""
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
