"""Keeps one thing in the API equal to the last value wanted. Knows nothing of what the value is."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import stamina
import structlog

from weightsync.errors import WeightSyncError
from weightsync_agent.observability import metrics

log = structlog.get_logger(__name__)

V = TypeVar("V")
LONGEST_WAIT = 10.0  # seconds between two tries of a write that fails


class Writer(Generic[V]):
    """One write at a time, of the newest value; at least ``interval`` seconds between two writes.

    write: async; raises WeightSyncError. One that is retryable is tried again until it succeeds or a newer value
    takes its place; any other is given up, and said in ``problem``, until another value is wanted.
    """

    def __init__(self, what: str, write: Callable[[V], Awaitable[None]], interval: float = 0.0) -> None:
        self.problem = ""
        self.what = what
        self._write = write
        self._interval = interval
        self._next = 0.0  # in the loop's time: no write before
        self._wanted: list[V] = []  # empty or one: None may be a value
        self._done: list[V] = []
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def want(self, value: V) -> None:
        """From now on ``value`` is what should be there."""
        if self._wanted == [value] == self._done:
            return
        self._wanted = [value]
        self._settled.clear()
        self._changed.set()

    async def settled(self) -> None:
        """Return once the wanted value is written or given up."""
        await self._settled.wait()

    async def run(self) -> None:
        """Write whenever there is something to write; until cancelled."""
        try:
            while True:
                await self._changed.wait()
                await asyncio.sleep(max(0.0, self._next - asyncio.get_running_loop().time()))
                self._changed.clear()
                await self._bring()
                self._next = asyncio.get_running_loop().time() + self._interval
                if not self._changed.is_set():
                    self._settled.set()
        finally:
            self._settled.set()  # nobody waits for a writer that has ended

    async def _bring(self) -> None:
        try:
            async for attempt in stamina.retry_context(
                on=_again, attempts=None, timeout=None, wait_initial=0.2, wait_max=LONGEST_WAIT
            ):
                with attempt:
                    await self._try()
        except WeightSyncError as error:
            if error.retryable:
                raise

    async def _try(self) -> None:
        wanted = self._wanted  # at each try: what came in meanwhile takes the place of what could not be written
        if wanted != self._done:
            self._done = []  # until it is known to be written: a write whose answer was lost may have come through
            try:
                await self._write(wanted[0])
            except WeightSyncError as error:
                self._note(error)
                raise
            self._done = wanted
        if self.problem:
            log.info("written after all", what=self.what)
        self.problem = ""

    def _note(self, error: WeightSyncError) -> None:
        metrics.ERRORS.labels(part="own_pod", reason=error.reason).inc()
        if str(error) != self.problem:  # once per problem, not once per try
            log.warning("not written", what=self.what, problem=str(error), tried_again=error.retryable)
        self.problem = str(error)


def _again(error: Exception) -> bool:
    return isinstance(error, WeightSyncError) and error.retryable
