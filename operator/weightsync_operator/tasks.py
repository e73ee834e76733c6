"""One task a WeightSync: woken, it waits for more of the same, runs one pass, and waits again.

Passes of one WeightSync never overlap; those of different ones do. A pass that fails is tried again with growing
delays, or at once where something changed. What is no error of ours (a bug) ends the task, and with it the operator:
a restart is seen, a task that silently does nothing is not.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from weightsync.errors import WeightSyncError

log = structlog.get_logger(__name__)

# Every trainer pod reads each new plan: of a thousand engines that come one by one none needs a plan of its own.
BETWEEN_PLANS_SECONDS = 1.0
FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 30.0


def retry_delay(failures: int) -> float | None:
    """Seconds until the next try after that many failures in a row; None after none."""
    if failures == 0:
        return None
    return float(min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** (failures - 1)))


class Tasks:
    """run: one pass over the WeightSync with that uid, True where it wrote a new plan; failed: called with the error
    of each that failed."""

    def __init__(
        self, run: Callable[[str], Awaitable[bool]], failed: Callable[[str, WeightSyncError], None], debounce: float
    ) -> None:
        self._run = run
        self._failed = failed
        self._debounce = debounce
        self._wakers: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started: dict[str, float] = {}

    def wake(self, uid: str) -> None:
        """A pass is due."""
        if uid not in self._tasks:
            self._wakers[uid] = asyncio.Event()
            self._tasks[uid] = asyncio.create_task(self._loop(uid), name=f"weightsync {uid}")
            self._tasks[uid].add_done_callback(self._ended)
        self._wakers[uid].set()

    def forget(self, uid: str) -> None:
        """The WeightSync is gone."""
        self._wakers.pop(uid, None)
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()

    async def broken(self) -> None:
        """Wait until a task ends with something that is no error of ours, and raise it."""
        await asyncio.shield(self._broken)

    def oldest_pass(self) -> float:
        """Since when (loop time) the longest running pass runs; the present where none does."""
        return min(self._started.values(), default=asyncio.get_running_loop().time())

    async def close(self) -> None:
        """End all tasks."""
        tasks = list(self._tasks.values())
        for uid in list(self._tasks):
            self.forget(uid)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._broken.cancel()

    async def _loop(self, uid: str) -> None:
        waker, failures, earliest = self._wakers[uid], 0, 0.0
        now = asyncio.get_running_loop().time
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waker.wait(), retry_delay(failures))
            await asyncio.sleep(max(self._debounce, earliest - now()))
            waker.clear()
            self._started[uid] = now()
            try:
                planned = await self._run(uid)
                failures, earliest = 0, now() + BETWEEN_PLANS_SECONDS if planned else 0.0
            except WeightSyncError as error:
                failures += 1
                self._failed(uid, error)
            finally:
                del self._started[uid]

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or self._broken.done():
            return
        error = task.exception()
        if error is not None:
            self._broken.set_exception(error)
