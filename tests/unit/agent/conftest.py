"""Fixtures of the agent's unit tests: time that passes only where a test says so."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
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

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """At once: a thread's work takes no virtual time, and nobody would wake a loop that does not sleep."""
        done: asyncio.Future[Any] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever awaits it gets it, as from a thread
            done.set_exception(error)
        return done

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._clock.now


@pytest.fixture
def in_virtual_time() -> Run[Any]:
    """Runs a coroutine in a loop of virtual time; no sockets in it, and what is given to threads is done at once."""

    def run(main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)

    return run
