"""Work that is not cut short: what would hold up the event loop, in a thread, and what must come to its end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *args: object) -> T:
    """What ``work`` returns, from a thread. A caller that is cancelled, once or again, goes on once that has ended.

    Otherwise whoever cancels would close files and mappings under a thread that still uses them.
    """
    return await to_its_end(asyncio.to_thread(work, *args))


async def to_its_end(work: Awaitable[T]) -> T:
    """What ``work`` returns. A caller that is cancelled, once or again, goes on only once it has ended.

    For what ends a worker and closes what it filled: half of that would leave an arena to nobody.
    """
    running = asyncio.ensure_future(work)
    cancelled = False
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        await asyncio.gather(running, return_exceptions=True)
        raise asyncio.CancelledError
    return running.result()


def given_up() -> bool:
    """The running task was cancelled, whatever it does now: a failure of its own may have hidden that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
