"""Makes thread pools run what they are given at once, in the caller's thread. No torch."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any


@contextmanager
def in_this_thread() -> Iterator[None]:
    """Make thread pools run what is submitted at once: a dispatch mode sees only the thread that entered it."""
    submit = ThreadPoolExecutor.submit

    def at_once(self: ThreadPoolExecutor, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - whoever asks the future gets it, as from a real pool
            future.set_exception(error)
        return future

    ThreadPoolExecutor.submit = at_once  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]
