"""Allocating an arena's pages beside the event loop: a gigabyte takes half a second, and agents answer meanwhile."""

from collections.abc import Callable, Iterable

from weightsync.arena import Arena
from weightsync.buckets import Extent
from weightsync.errors import InputError
from weightsync_agent.threads import in_thread

PIECE = 256 << 20  # bytes at once: mapping pages holds the interpreter's lock, and others must run in between


async def prefault(arena: Arena, extents: Iterable[Extent], held: Callable[[], bool] = lambda: True) -> None:
    """Allocate the extents' pages. Raises InputError: there is no room, or the arena is not ``held`` any more."""
    for start, stop in extents:
        for at in range(start, stop, PIECE):
            await in_thread(arena.prefault, [(at, min(at + PIECE, stop))])
            if not held():  # at the end, too: the caller notes what the pages are for
                raise InputError(f"{arena.path}: was given away while its pages were allocated")
