"""Where what is written to an engine lands: in arenas beside it or in its live parameters, for all ranks alike."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import structlog

from weightsync.announcement import Mode
from weightsync.convert.program import CopyProgram
from weightsync.errors import InputError
from weightsync.wire.v1 import QuietAnswer, QuietRequest
from weightsync_agent.arenas.sizing import check_room
from weightsync_agent.engines.seed import SEED_FLAG, Seed

log = structlog.get_logger(__name__)

Wish = Literal["Auto", "Staged", "Direct"]


def choose(wish: Wish, no_room: str, *, offered: bool) -> Mode:
    """no_room: why the arenas do not fit, "" where they do; offered: the engine registered its parameters.

    Raises InputError where neither can be.
    """
    if wish == "Direct":
        if not offered:
            raise InputError(
                "transfer.mode is Direct, and the engine has registered no parameters to write to: start it with "
                f"{SEED_FLAG} and a Mooncake package, on one pipeline stage, or set transfer.mode to Auto or Staged"
            )
        return "Direct"
    if not no_room:
        return "Staged"
    if wish == "Auto" and offered:
        return "Direct"
    other = (
        "" if wish == "Staged" else f"; or start the engine with {SEED_FLAG}, so that it can be written to directly"
    )
    raise InputError(no_room + other)


async def staged() -> Wish:
    """The wish of who has none."""
    return "Staged"


async def nobody(address: str, request: QuietRequest) -> QuietAnswer:
    """Where nobody can be asked, no writer is known to have ended."""
    return QuietAnswer(quiet=False)


class Landing:
    """wish: what the resource says now; seed: of a rank, None where the engine offers none."""

    def __init__(
        self,
        wish: Callable[[], Awaitable[Wish]],
        seed: Callable[[int], Awaitable[Seed | None]],
        *,
        memory_limit: int | None,
        arenas: int,
    ) -> None:
        self._wish = wish
        self._seed = seed
        self._limit = memory_limit
        self._arenas = arenas

    async def seeds(self, programs: Sequence[CopyProgram]) -> dict[int, Seed] | None:
        """By rank, where Direct was chosen; None: Staged. Raises InputError where neither can be."""
        wish, no_room = await self._wish(), self._no_room(programs)
        if wish == "Staged" or (wish == "Auto" and not no_room):
            choose(wish, no_room, offered=False)
            return None
        found = [await self._seed(program.rank) for program in programs]
        seeds = {seed.rank: seed for seed in found if seed is not None}
        choose(wish, no_room, offered=len(seeds) == len(programs))
        return seeds

    def _no_room(self, programs: Sequence[CopyProgram]) -> str:
        held = self._arenas * sum(program.layout.nbytes for program in programs)
        try:
            check_room(held, self._limit, f"{self._arenas} arenas for each of {len(programs)} ranks: together they")
        except InputError as error:
            return str(error)
        return ""
