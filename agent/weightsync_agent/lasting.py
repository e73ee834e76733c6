"""Tasks that should run as long as the agent: a fault of ours that ends one is said at once, raised at the end."""

import asyncio
from collections.abc import Collection, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import structlog

T = TypeVar("T")

log = structlog.get_logger(__name__)


def begin(what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run ``work``; what: its purpose, for the log line if it should die."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical("ended by a fault of this program", task=what, exc_info=task.exception())

    task = asyncio.create_task(work, name=what)
    task.add_done_callback(ended)
    return task


async def end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel and wait. Raises what had ended a task before."""
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def meanwhile(work: Coroutine[Any, Any, T], tasks: Collection[asyncio.Task[None]]) -> T:
    """The result of ``work``, which ``tasks`` bring about. Raises what ended one of them."""
    waiting = asyncio.create_task(work)
    try:
        await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()
        return await waiting
    finally:
        waiting.cancel()
