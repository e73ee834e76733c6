"""Virtual time: a heap of events, and tasks that are generators. Nothing here knows what is simulated.

A task yields a Future and goes on with its value, or with its error raised. A task belongs to a Life; when that ends,
the task is never run again, wherever it stands: that is a crash.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from weightsync.errors import WeightSyncError

Work = Generator["Future", Any, Any]
KEPT = 400  # lines of the trace


class Cancelled(BaseException):
    """Thrown into a task that was cancelled."""


class TimedOut(Exception):
    """A deadline of ours passed."""


class Future:
    """A value that comes later."""

    __slots__ = ("callbacks", "done", "error", "loop", "value")

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.callbacks: list[Callable[[Future], None]] = []

    def set(self, value: Any = None) -> None:
        """The first result counts."""
        if not self.done:
            self.done, self.value = True, value
            self._wake()

    def fail(self, error: BaseException) -> None:
        """The first result counts."""
        if not self.done:
            self.done, self.error = True, error
            self._wake()

    def _wake(self) -> None:
        ready = self.loop.ready
        for callback in self.callbacks:
            ready.append((callback, self))
        self.callbacks = []

    def then(self, callback: Callable[[Future], None]) -> None:
        """Call it within the event that brings the value."""
        if self.done:
            self.loop.ready.append((callback, self))
        else:
            self.callbacks.append(callback)


class Life:
    """One life of a process. frozen_until: it runs nothing before (a stopped process)."""

    __slots__ = ("alive", "frozen_until", "name", "on_end", "serving")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen_until = 0.0
        self.on_end: list[Callable[[], None]] = []
        self.serving: dict[Future, str] = {}  # requests that it has taken and not answered

    def end(self) -> None:
        """Kill -9."""
        if self.alive:
            self.alive = False
            for callback in self.on_end:
                callback()
            self.on_end = []


class Task(Future):
    """A generator that runs in a life."""

    __slots__ = ("gen", "life", "waiting")

    def __init__(self, loop: Loop, life: Life, gen: Work) -> None:
        super().__init__(loop)
        self.gen = gen
        self.life = life
        self.waiting: Future | None = None
        loop.ready.append((self.begin, self))

    def begin(self, _: Future) -> None:
        """The first step."""
        if not self.done:
            self._go(None, None)

    def _resume(self, future: Future) -> None:
        if self.waiting is future:
            self._go(future.value, future.error)

    def _go(self, value: Any, error: BaseException | None) -> None:
        life, loop = self.life, self.loop
        if not life.alive or self.done:
            return
        if life.frozen_until > loop.now:
            # A stopped process takes its messages when it goes on, in their order.
            hold = self.waiting = Future(loop)
            hold.value, hold.error = value, error
            hold.callbacks.append(self._resume)
            loop.at(life.frozen_until - loop.now, _thaw, hold)
            return
        self.waiting = None
        try:
            while True:
                waited = self.gen.throw(error) if error is not None else self.gen.send(value)
                if not waited.done:
                    break
                value, error = waited.value, waited.error
        except StopIteration as stop:
            self.set(stop.value)
            return
        except (WeightSyncError, Cancelled, TimedOut) as failure:
            self.fail(failure)
            return
        self.waiting = waited
        waited.callbacks.append(self._resume)

    def cancel(self) -> None:
        """Raise Cancelled where it waits."""
        if self.done:
            return
        waiting = self.waiting
        if isinstance(waiting, Turn):
            waiting.give_up()
        stop = self.waiting = Future(self.loop)
        stop.then(self._resume)
        stop.fail(Cancelled())


def _thaw(hold: Future) -> None:
    hold.done = True
    hold._wake()


class Turn(Future):
    """A place in a lock's queue."""

    __slots__ = ("lock",)

    def __init__(self, lock: Lock) -> None:
        super().__init__(lock.loop)
        self.lock = lock

    def give_up(self) -> None:
        """Its task was cancelled."""
        if self.done:
            self.lock.release()
        else:
            self.lock.queue.remove(self)


class Lock:
    """One holder at a time, in order."""

    __slots__ = ("held", "loop", "queue")

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.held = False
        self.queue: deque[Turn] = deque()

    def acquire(self) -> Turn:
        """To be yielded."""
        turn = Turn(self)
        if self.held:
            self.queue.append(turn)
        else:
            self.held = True
            turn.set()
        return turn

    def release(self) -> None:
        """Hand it on."""
        if self.queue:
            self.queue.popleft().set()
        else:
            self.held = False


class Loop:
    """The heap, the time, the trace."""

    __slots__ = ("events", "heap", "now", "number", "ready", "trace")

    def __init__(self) -> None:
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self.number = 0
        self.ready: deque[tuple[Callable[[Future], None], Future]] = deque()
        self.events = 0
        self.trace: deque[tuple[float, int, str, str, object]] = deque(maxlen=KEPT)

    def at(self, delay: float, call: Callable[..., Any], *args: Any) -> None:
        """Call it after ``delay`` seconds. What returns False was no event (a deadline that had no effect)."""
        self.number += 1
        heapq.heappush(self.heap, (self.now + delay, self.number, call, args))

    def step(self) -> bool:
        """One event, and all that follows from it at once. False when nothing will ever happen."""
        if not self.heap:
            return False
        self.now, _, call, args = heapq.heappop(self.heap)
        if call(*args) is not False:
            self.events += 1
        self.drain()
        return True

    def drain(self) -> None:
        """What became ready."""
        ready = self.ready
        while ready:
            callback, future = ready.popleft()
            callback(future)

    def sleep(self, delay: float) -> Future:
        """A future that is done after ``delay`` seconds."""
        future = Future(self)
        self.at(delay, future.set, None)
        return future

    def within(self, future: Future, seconds: float) -> Future:
        """The same, or TimedOut after so many seconds."""
        if future.done:
            return future
        limited = Future(self)

        def done(original: Future) -> None:
            if not limited.done:
                limited.done, limited.value, limited.error = True, original.value, original.error
                limited._wake()

        future.callbacks.append(done)
        self.at(seconds, self._expire, limited)
        return limited

    @staticmethod
    def _expire(limited: Future) -> bool:
        if limited.done:
            return False
        limited.fail(TimedOut())
        return True

    def note(self, who: str, what: str, detail: object = "") -> None:
        """Remember for the trace; formatted only if it is printed."""
        self.trace.append((self.now, self.events, who, what, detail))
