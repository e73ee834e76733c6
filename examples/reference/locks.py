"""A lock for many readers or one writer, on one event loop: updates of a running engine wait for its requests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class ReadersWriterLock:
    """A waiting writer keeps new readers out, so that it comes to its turn.

    Letting go awaits nothing, so that it happens also in a task that is being cancelled.
    """

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._readers = 0
        self._writers_waiting = 0
        self._writing = False

    @property
    def readers(self) -> int:
        """How many hold it for reading."""
        return self._readers

    @property
    def writers_waiting(self) -> int:
        """How many wait to write."""
        return self._writers_waiting

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Hold it together with other readers."""
        await self._until(lambda: not self._writing and not self._writers_waiting)
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            self._wake()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Hold it alone."""
        self._writers_waiting += 1
        try:
            await self._until(lambda: not self._writing and not self._readers)
            self._writing = True
        finally:
            self._writers_waiting -= 1
            self._wake()
        try:
            yield
        finally:
            self._writing = False
            self._wake()

    async def no_readers(self, seconds: float) -> bool:
        """Wait until nobody reads, at most ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self._until(lambda: not self._readers)
        except TimeoutError:
            return False
        return True

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
