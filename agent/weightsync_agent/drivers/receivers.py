"""Further processes through which one rank's arenas can be written to: one for each carrier that a grant asked for.

The rank's own worker is not among them; it takes what the agent's own transport carries.
"""

import asyncio
from pathlib import Path
from typing import Protocol

from weightsync.wire.v1 import Region
from weightsync_agent.transfer.settings import OWN, Carrier
from weightsync_agent.transfer.supervisor import TransferWorker


class StartWorker(Protocol):
    """Starts a worker of one rank. Raises TransferError."""

    async def __call__(self, name: str, carrier: Carrier = OWN) -> TransferWorker:
        """name: for logs."""
        ...


class Receivers:
    """name: of the rank's workers, for logs."""

    def __init__(self, name: str, start: StartWorker) -> None:
        self._name = name
        self._start = start
        self._workers: dict[Carrier, TransferWorker] = {}

    async def region(self, carrier: Carrier, path: Path) -> tuple[TransferWorker, Region]:
        """The worker over that carrier, and where the arena lies in it; both are made where they are not there.

        Raises TransferError. Nobody reaches an arena through a worker that has ended by itself.
        """
        worker = self._workers.get(carrier)
        if worker is None or worker.dead.done():
            worker = await self._start(f"{self._name}-{carrier.transport}", carrier)
            self._workers[carrier] = worker
        return worker, await worker.attach(path)

    async def end(self) -> None:
        """Kill them all: only then no byte can land through them any more."""
        workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.kill()
        await asyncio.gather(*(asyncio.shield(worker.dead) for worker in workers))

    async def close(self) -> None:
        """End them."""
        for worker in self._workers.values():
            await worker.close()
