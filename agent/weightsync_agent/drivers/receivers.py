"""Further processes through which one rank's arenas can be written to: one for each carrier that a grant asked for.

The rank's own worker is not among them; it takes what the agent's own transport carries.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from weightsync.errors import Refused
from weightsync.wire.v1 import Region
from weightsync_agent.transfer.settings import OWN, Carrier
from weightsync_agent.transfer.supervisor import TransferWorker

# Registering a large arena with a device may take longer than whoever asks for a grant waits for an answer.
READY_SECONDS = 2.0

Made = tuple[TransferWorker, dict[Path, Region]]


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
        self._made: dict[Carrier, asyncio.Task[Made]] = {}

    async def region(self, carrier: Carrier, path: Path, paths: Sequence[Path]) -> tuple[TransferWorker, Region]:
        """The worker over that carrier, and where the arena at ``path`` lies in it. paths: all that it is to have.

        Both are made where they are not there, or have ended. Raises Refused, reason Fencing, where that lasts: ask
        again; and TransferError where it cannot be.
        """
        making = self._made.get(carrier)
        if making is None or _over(making):
            making = self._made[carrier] = asyncio.create_task(self._make(carrier, paths))
        await asyncio.wait({making}, timeout=READY_SECONDS)
        if not making.done():
            raise Refused(f"{self._name} starts over {carrier.transport}: ask again", reason="Fencing", status=503)
        worker, regions = making.result()
        return worker, regions[path]

    async def _make(self, carrier: Carrier, paths: Sequence[Path]) -> Made:
        worker = await self._start(f"{self._name}-{carrier.transport}", carrier)
        try:
            return worker, {path: await worker.attach(path) for path in paths}
        except BaseException:
            await worker.close()
            raise

    async def end(self) -> None:
        """Kill them: only then no byte can land through them. One that is being made was granted to nobody yet."""
        workers = [_made(making) for making in self._made.values() if making.done()]
        self._made = {carrier: making for carrier, making in self._made.items() if not making.done()}
        ending = [worker for worker in workers if worker is not None]
        for worker in ending:
            worker.kill()
        await asyncio.gather(*(asyncio.shield(worker.dead) for worker in ending))

    async def close(self) -> None:
        """End them, also those that are being made."""
        for making in self._made.values():
            making.cancel()  # without effect where it is made
        for making in self._made.values():
            await asyncio.wait({making})
            if (worker := _made(making)) is not None:
                await worker.close()


def _made(making: "asyncio.Task[Made]") -> TransferWorker | None:
    """The worker that a task made; None where it failed, which whoever waited was told."""
    failed = making.cancelled() or making.exception() is not None
    return None if failed else making.result()[0]


def _over(making: "asyncio.Task[Made]") -> bool:
    """What it made is of no use: it failed, or the worker has ended by itself."""
    if not making.done():
        return False
    worker = _made(making)
    return worker is None or worker.dead.done()
