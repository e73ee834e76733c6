"""All engines are replaced in waves, as controllers do it, while the operator's watches and the API server end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from tools.bench.scale.fleet import Fleet
from tools.bench.scale.wire import Wire
from tools.cluster.light import LightCluster
from tools.world.cluster import ApiServer
from tools.world.processes import wait

WAVES: Final = 10
UNSEEN, STRUCK = 3, 6  # waves, counted from 0
AWAY_SECONDS: Final = 3.0  # of the API server
READY_SECONDS = 300.0  # until it has read all pods again
WHAT: Final = (
    f"watches cut after every wave; wave {UNSEEN + 1} unseen, and the API server killed before the operator can ask "
    f"for what it missed; the API server killed in the middle of wave {STRUCK + 1}"
)


class Rolling:
    """One rolling update. wire: the operator's way to the API server; the fleet has its own.

    away_seconds: how long the API server is away, each time.
    """

    def __init__(
        self, cluster: LightCluster, fleet: Fleet, wire: Wire, *, away_seconds: float = AWAY_SECONDS
    ) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._wire = wire
        self._away_seconds = away_seconds

    async def run(self, engines: Sequence[int]) -> float:
        """Replace them all; the seconds that it took. What the plan is then, nobody has looked at."""
        started = time.monotonic()
        for number in range(WAVES):
            wave = engines[number::WAVES]
            if number == UNSEEN:
                await self._unseen(number, wave)
            elif number == STRUCK:
                await asyncio.gather(self._replace(number, wave), self._api_server_killed())
            else:
                await self._replace(number, wave)
            self._wire.cut()
        return time.monotonic() - started

    async def _replace(self, number: int, wave: Sequence[int]) -> None:
        """As a LeaderWorkerSet, in place; every second wave as a Deployment: others come first, then these go."""
        if number % 2:
            first = max(self._fleet.lives) + 1
            await self._fleet.each(lambda n: self._fleet.succeed(n, first + n), wave)
        else:
            await self._fleet.each(self._fleet.replace, wave)

    async def _unseen(self, number: int, wave: Sequence[int]) -> None:
        """No watch can go on where it ended: the API server has forgotten what was before its own start."""
        self._wire.part()
        await self._replace(number, wave)
        await self._api_server_killed()
        self._wire.mend()

    async def _api_server_killed(self) -> None:
        """SIGKILL; every watch ends with it. Returns when it serves again."""
        server = ApiServer(self._cluster)
        server.kill()
        await asyncio.sleep(self._away_seconds)
        server.begin()
        ready = self._cluster.client.is_ready
        await asyncio.to_thread(wait, "the API server with all its pods", ready, READY_SECONDS)
