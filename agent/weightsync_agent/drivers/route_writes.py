"""The writes of one route: which are in flight, through which worker, and what their ends say.

A call that ended quiet without its fault (its worker was replaced under it) leaves buckets Unsent; one that stalled
is told at once, for its worker must take nothing new. Only when no call is in flight it is said whether bytes may
still land.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from weightsync.buckets import Bucket
from weightsync.digests import BucketDigest
from weightsync.errors import TransferError
from weightsync.wire.v1 import PlannedRoute
from weightsync_agent import failpoints
from weightsync_agent.protocol import route as r
from weightsync_agent.protocol import source_events as s
from weightsync_agent.transfer.supervisor import DIED, STALLED, STOPPED, STUCK, TransferWorker

log = structlog.get_logger(__name__)

LANES = 3  # write calls in flight per route: one on the wire, one behind it, one being receipted
BATCH = 4  # buckets of one write call
UNEXPECTED = "SourceFailed"  # an error that nothing foresees: what it left in flight is not known
PROBE_SECONDS = 5.0

Ready = Callable[[int, Path], Awaitable[TransferWorker]]


@dataclass
class Call:
    """One write call. left: buckets that have not landed."""

    lane: int
    left: dict[int, BucketDigest]
    stop: asyncio.Event = field(default_factory=asyncio.Event)


class RouteWrites:
    """See the module. ready: the worker of a lane; tell: takes RouteStalled, RouteMoved and LaneHeld."""

    def __init__(
        self,
        id_: s.RouteId,
        planned: PlannedRoute,
        *,
        arena: Path,
        lane: int,
        stall_seconds: float,
        ready: Ready,
        tell: Callable[[object], None],
    ) -> None:
        self.told: Callable[[object], None] = lambda event: None  # takes the route's events
        self.transport = ""
        self._id = id_
        self._planned = planned
        self._arena = arena
        self._lane = lane
        self._stall = stall_seconds
        self._ready = ready
        self._tell = tell
        self._waiting: deque[BucketDigest] = deque()
        self._calls: dict[asyncio.Task[None], Call] = {}
        self._blocked = False  # this lane takes no write: wait for the next
        self._broke: TransferError | None = None
        self._open: set[int] = set()  # lanes through which a write's end is not known
        self._over = False

    # --- what the route wants ---

    def add(self, buckets: Iterable[BucketDigest]) -> None:
        """Write these, too."""
        self._waiting.extend(buckets)
        self._start()

    def move(self, lane: int) -> None:
        """Submit nothing more through another lane; go on through this one."""
        old = self._lane
        self._lane, self._blocked = lane, False
        for call in self._calls.values():
            if call.lane != lane:
                call.stop.set()
        self._left(old)
        self._start()

    def stop(self) -> None:
        """Submit nothing more at all; when what was submitted is terminal, the route learns it as WriteBroke."""
        self._note(TransferError("stopped", reason=STOPPED, quiet=True))
        self._settle()

    def strand(self) -> None:
        """What is in flight is not waited for: its end will never be known."""
        self._note(TransferError("given up", reason=UNEXPECTED))
        self._open.update(call.lane for call in self._calls.values())

    def close(self) -> tuple[int, ...]:
        """The route is over: lanes through which a write of it may not be terminal."""
        self._over = True
        self._waiting.clear()
        for call in self._calls.values():
            call.stop.set()
        return tuple(sorted(self._open | {call.lane for call in self._calls.values() if call.left}))

    async def cancel(self) -> None:
        """The agent ends: so do the calls."""
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def probe(self) -> None:
        """Raises TransferError where the target's worker does not answer."""
        try:
            worker = await self._ready(self._lane, self._arena)
        except TransferError as error:
            if error.reason == DIED:
                return  # that says nothing of the target: another worker meets it
            raise
        await worker.probe(self._planned.region.session, deadline_seconds=min(PROBE_SECONDS, self._stall))

    # --- calls ---

    def _start(self) -> None:
        while self._waiting and len(self._calls) < LANES and self._broke is None and not self._blocked:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            call = Call(self._lane, {bucket.offset: bucket for bucket in batch})
            self._calls[asyncio.create_task(self._write(call))] = call

    async def _write(self, call: Call) -> None:
        """However it ends, this call is none any more, and the last one to end says what broke."""
        try:
            await self._through(call)
        except TransferError as error:
            self._failed(call, error)
        except BaseException as error:
            self._open.add(call.lane)
            self._note(TransferError(f"{type(error).__name__}: {error}", reason=UNEXPECTED))
            if not isinstance(error, Exception):
                raise
            log.exception("a write failed", engine=self._planned.engine)
        finally:
            self._ended(call)

    async def _through(self, call: Call) -> None:
        worker = await self._worker(call)
        if call.stop.is_set():
            raise TransferError("stopped before it wrote", reason=STOPPED, quiet=True)
        self.transport = worker.capabilities.transport
        runs = [Bucket(offset=b.offset, nbytes=b.nbytes) for b in call.left.values()]
        written = worker.write(self._arena, runs, self._planned.region, stall_seconds=self._stall, stop=call.stop)
        async for bucket in written:
            await failpoints.reach("source", "writing")  # before it counts: else the other lanes could end the route
            del call.left[bucket.offset]
            self.told(r.Written((bucket.offset,)))

    async def _worker(self, call: Call) -> TransferWorker:
        """The lane's worker; its start may last, and is not waited for by a call that is stopped."""
        ready = asyncio.ensure_future(self._ready(call.lane, self._arena))
        stopped = asyncio.ensure_future(call.stop.wait())
        try:
            await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                return ready.result()
            raise TransferError("stopped before its worker was there", reason=STOPPED, quiet=True)
        finally:
            ready.cancel()
            stopped.cancel()

    def _failed(self, call: Call, error: TransferError) -> None:
        if error.reason == STALLED:
            if not error.quiet:  # else the write was ended at its source: nothing reads the arena for it any more
                self._open.add(call.lane)
            if not self._over:
                self._tell(s.RouteStalled(self._id, call.lane))
        elif error.quiet and error.reason in (STOPPED, STUCK, DIED) and self._broke is None:
            # No fault of this route's: the worker takes no more, and what it took is terminal.
            if call.lane == self._lane:
                self._blocked = True  # until we are told of another; nothing can be written through this one
            if error.reason == STUCK and not self._over:
                self._tell(s.LaneHeld(call.lane))
            self.told(r.Unsent(tuple(call.left)))
            return
        self._note(error)

    def _note(self, error: TransferError) -> None:
        """Keep the worst of several failures: the first after which bytes may still land. Nothing is started more."""
        if self._broke is None or (self._broke.quiet and not error.quiet):
            self._broke = error
        self._waiting.clear()
        for call in self._calls.values():
            call.stop.set()

    def _ended(self, call: Call) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._calls.pop(task, None)
        if self._over:
            return
        if call.lane != self._lane:
            self._left(call.lane)
        self._settle()
        self._start()

    def _left(self, lane: int) -> None:
        """Say that an old lane is free of us, once it is."""
        busy = lane in self._open or any(call.lane == lane for call in self._calls.values())
        if lane != self._lane and not busy:
            self._tell(s.RouteMoved(self._id, lane))

    def _settle(self) -> None:
        if self._broke is not None and not self._calls:
            planned = self._planned
            message = f"{planned.engine}, rank {planned.rank}: {self._broke}"
            self.told(r.WriteBroke(self._broke.quiet, self._broke.reason, message))
