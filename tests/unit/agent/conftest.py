"""Fixtures of the agent's unit tests: time that passes only where a test says so."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]


class _Jumping(selectors.SelectSelector):
    """Does not wait: where nothing is ready, the clock jumps to the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits, and no timer is set: this would hang for ever"
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time is its timers' only: an hour of sleep costs nothing, and figures of time are exact."""

    def __init__(self) -> None:
        self._clock = _Jumping()
        super().__init__(self._clock)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._clock.now


@pytest.fixture
def in_virtual_time() -> Run[Any]:
    """Runs a coroutine in a loop of virtual time; no threads and no sockets in it."""

    def run(main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)

    return run
