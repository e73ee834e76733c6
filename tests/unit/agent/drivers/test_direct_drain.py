"""Waiting for writers that an agent before this one may have let into an engine's memory."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from weightsync.testing.programs import plain_program
from weightsync.wire.v1 import QuietAnswer, QuietRequest, Region
from weightsync_agent.drivers.direct_rank import DirectRank
from weightsync_agent.engines.seed import Seed
from weightsync_agent.protocol.direct import DirectState

Run = Callable[[Coroutine[Any, Any, None]], None]


async def nothing(*_: object) -> Any:
    raise AssertionError("nobody is to be started or asked for a seed here")


async def no_seed(_: int) -> Seed | None:
    return None


async def is_quiet(_: str, __: QuietRequest) -> QuietAnswer:
    return QuietAnswer(quiet=True)


def test_writers_that_nobody_knows_are_waited_for_at_each_look(in_virtual_time: Run) -> None:
    """They are restored under one name each time: whoever waited for the former ones does not wait on for these."""

    async def main() -> None:
        rank = DirectRank(plain_program({"w": ("float32", (4,))}), nothing, no_seed, is_quiet)
        rank._region = Region(session="h:1", address=0, nbytes=16)
        rank._planned = {"trainer": "h:2"}
        for _ in range(3):
            await rank.restore_anybody()
            assert rank.machine.state is DirectState.DRAINING
            for _ in range(3):  # as often as a coordinator asks
                rank._drain()
                await asyncio.sleep(0.02)
            if rank.machine.state is DirectState.CLOSED:
                continue
            await asyncio.sleep(3.0)
            rank._drain()
            await asyncio.sleep(0.02)
            assert rank.machine.state is DirectState.CLOSED
        await rank.close()

    in_virtual_time(main())
