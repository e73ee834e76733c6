"""The transfer workers of one source rank, by lane: started on first use, arenas attached, killed when told.

Which lane is used for what, and when one is killed, protocol.lanes decides. A lane has one worker for each carrier
that is written over; they end together.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from weightsync.errors import TransferError
from weightsync_agent.devices.route import NO_DEVICE
from weightsync_agent.drivers.background import Background
from weightsync_agent.drivers.receivers import StartWorker
from weightsync_agent.observability import metrics
from weightsync_agent.transfer.child import DIED
from weightsync_agent.transfer.settings import OWN, Carrier
from weightsync_agent.transfer.supervisor import TransferWorker

log = structlog.get_logger(__name__)


@dataclass
class Lane:
    """One worker. starting: its start, shared by all who wait for it."""

    starting: "asyncio.Task[TransferWorker]"
    attaching: asyncio.Lock = field(default_factory=asyncio.Lock)
    attached: set[Path] = field(default_factory=set)
    leaving: set[Path] = field(default_factory=set)  # arenas that are gone, and are still mapped

    @property
    def worker(self) -> TransferWorker | None:
        """The worker, once it has started."""
        started = self.starting.done() and not self.starting.cancelled() and self.starting.exception() is None
        return self.starting.result() if started else None


class SourceWorkers:
    """See the module. dead: told each lane whose processes have all ended, or never were."""

    def __init__(self, name: str, start: StartWorker, dead: Callable[[int], None]) -> None:
        self._name = name
        self._start = start
        self._dead = dead
        self._lanes: dict[tuple[int, Carrier], Lane] = {}
        self._gone: set[int] = set()
        self._background = Background(name)

    async def ready(self, lane: int, *paths: Path, carrier: Carrier = OWN) -> TransferWorker:
        """The lane's worker over that carrier, with these arenas attached.

        Raises TransferError: quiet, nothing was asked of it. A caller that is cancelled ends nobody else's wait.
        """
        if lane in self._gone:
            raise TransferError(f"{self._name}: worker {lane} has ended", reason=DIED, quiet=True)
        found = self._lanes.get((lane, carrier))
        if found is None:
            starting = asyncio.create_task(self._begin(lane, carrier))
            starting.add_done_callback(_seen)
            found = self._lanes[lane, carrier] = Lane(starting)
        try:
            worker = await asyncio.shield(found.starting)
        except TransferError as error:
            reason = error.reason if error.reason == NO_DEVICE else "NoWorker"
            raise TransferError(f"no worker for {self._name}: {error}", reason=reason, quiet=True) from error
        async with found.attaching:
            for path in paths:
                await self._let_go(found, worker, path)
                if path not in found.attached:
                    await worker.attach(path)
                    found.attached.add(path)
        return worker

    async def _begin(self, lane: int, carrier: Carrier) -> TransferWorker:
        try:
            worker = await self._start(f"{self._name}-{lane}", carrier)
        except BaseException:
            self._lanes.pop((lane, carrier), None)  # the next use tries again
            if lane in self._gone and not self._of(lane):
                self._dead(lane)
            raise
        worker.dead.add_done_callback(lambda _: self._ended(lane, carrier))
        if lane in self._gone:
            worker.kill()
        return worker

    def _ended(self, lane: int, carrier: Carrier) -> None:
        """What is in flight through the lane's other workers is nobody's any more: they end, too."""
        self._gone.add(lane)
        self._lanes.pop((lane, carrier), None)
        others = self._of(lane)
        for other in others:
            if (worker := other.worker) is not None:
                worker.kill()
        if not others:
            self._dead(lane)

    def _of(self, lane: int) -> list[Lane]:
        """The lane's workers, by carrier."""
        return [held for (number, _), held in self._lanes.items() if number == lane]

    def addressed(self, session: str) -> list[int]:
        """Lanes whose worker may be connected to that session, also those that were told to end and have not yet."""
        found = ((lane, held.worker) for (lane, _), held in self._lanes.items())
        return [lane for lane, worker in found if worker is not None and worker.has_addressed(session)]

    def kill(self, lane: int) -> None:
        """End the lane's processes, also one that is only being started; ``dead`` is told when that is over."""
        self._gone.add(lane)
        metrics.WORKER_RESTARTS.labels(reason="killed").inc()
        found = self._of(lane)
        if not found:
            self._dead(lane)
        for held in found:
            if (worker := held.worker) is not None:
                log.info("ending a source's worker", worker=f"{self._name}-{lane}")
                worker.kill()

    def forget(self, path: Path) -> None:
        """The arena at that path goes: no worker may take its mapping for that of another at the same path."""
        for found in self._lanes.values():
            if path in found.attached:
                found.attached.discard(path)
                found.leaving.add(path)
                self._background.spawn(self._detach(found, path))

    async def _detach(self, found: Lane, path: Path) -> None:
        worker = await asyncio.shield(found.starting)
        async with found.attaching:
            await self._let_go(found, worker, path)

    async def _let_go(self, found: Lane, worker: TransferWorker, path: Path) -> None:
        if path not in found.leaving:
            return
        try:
            await worker.detach(path)
        except TransferError as error:
            if not worker.dead.done():
                log.warning("a worker did not let an arena go: ending it", worker=worker.name, why=str(error))
                worker.kill()
            raise
        found.leaving.discard(path)

    async def close(self) -> None:
        """End all workers."""
        lanes = list(self._lanes.values())
        self._gone.update(lane for lane, _ in self._lanes)
        await self._background.close()
        for lane in lanes:
            lane.starting.cancel()  # without effect where it has started
            await asyncio.wait({lane.starting})
            if (worker := lane.worker) is not None:
                await worker.close()


def _seen(starting: "asyncio.Task[TransferWorker]") -> None:
    """A start that failed is told to whoever waits for it; that nobody does is no fault."""
    if not starting.cancelled():
        starting.exception()
