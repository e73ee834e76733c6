"""Work that nobody awaits: kept alive until done, its failure logged and counted, never lost."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from weightsync.errors import WeightSyncError
from weightsync_agent.observability import metrics

log = structlog.get_logger(__name__)


class Background:
    """The tasks of one part of the agent. failed: told of each task's error, after it was logged."""

    def __init__(self, part: str, failed: Callable[[BaseException], None] | None = None) -> None:
        self._part = part
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it to its end."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

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
        if self._failed is not None:
            self._failed(error)

    async def close(self) -> None:
        """Cancel what still runs, and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
