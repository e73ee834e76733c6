"""Work that would hold up the event loop, in a thread."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *args: object) -> T:
    """What ``work`` returns, from a thread. A caller that is cancelled goes on only once the thread has ended.

    Otherwise whoever cancels would close files and mappings under a thread that still uses them.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise
