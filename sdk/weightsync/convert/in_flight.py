"""Copies that were queued on a device and may still run: in which order they are settled, and how much may wait.

Nothing here knows CUDA: an event is whatever can be asked and waited for. The rules:
- Copies of one lane end in the order in which they were queued, so only the oldest is ever asked or waited for.
- What a copy reads stays alive until its event is done, and a bucket counts as filled only then.
- At most ``limit`` bytes of such tensors are held; a tensor that is larger than that waits until it is alone.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol


class Event(Protocol):
    """A mark in a lane. torch.cuda.Event is one."""

    def query(self) -> bool:
        """Whether all that was queued before it is done."""

    def synchronize(self) -> None:
        """Wait, asleep, until it is."""


class Queued(NamedTuple):
    """Copies up to one mark. held: what they read; nbytes: given back with it; done: what to do afterwards."""

    event: Event
    held: tuple[object, ...]
    nbytes: int
    done: Callable[[], None]


class InFlight:
    """The queued copies of one lane, oldest first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._queue: deque[Queued] = deque()

    def hold(self, nbytes: int) -> None:
        """Take so many bytes in, as soon as there is room; the entry that gives them back follows."""
        while self._queue and self.nbytes + nbytes > self.limit:
            self._queue[0].event.synchronize()
            self._pop().done()
        self.nbytes += nbytes

    def add(self, queued: Queued) -> None:
        """The newest."""
        self._queue.append(queued)

    def settle(self) -> None:
        """Do what follows all that is done by now; waits for nothing."""
        while self._queue and self._queue[0].event.query():
            self._pop().done()

    def drain(self) -> None:
        """Wait for everything, each as it is done."""
        for queued in self._emptied():
            queued.done()

    def abandon(self) -> None:
        """Wait for everything, and do nothing of what would follow: the publish failed."""
        for _ in self._emptied():
            pass
        self.nbytes = 0  # also what was held for a tensor that failed half-way

    def _emptied(self) -> Iterator[Queued]:
        while self._queue:
            self._queue[0].event.synchronize()
            yield self._pop()

    def _pop(self) -> Queued:
        queued = self._queue.popleft()
        self.nbytes -= queued.nbytes
        return queued
