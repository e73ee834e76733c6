"""Runs one protocol.route.Route: writes through the lane that it is told, receipts, and the report of its end."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from weightsync.digests import BucketDigest
from weightsync.errors import PeerError, TransferError, WeightSyncError
from weightsync.wire.v1 import Accepted, PlannedRoute, Receipts, ReceiptsAnswer, RouteEnd, SyncOrder, WriterId
from weightsync_agent import failpoints
from weightsync_agent.drivers.route_writes import UNEXPECTED, RouteWrites
from weightsync_agent.observability import feeds
from weightsync_agent.peers.client import PeerClient
from weightsync_agent.protocol import route as r
from weightsync_agent.protocol import source_events as s

log = structlog.get_logger(__name__)

RECEIPTS = 3  # requests under way at a time: the target checks while the next are on their way


@dataclass(frozen=True)
class RouteTask:
    """What one route is: the order that it belongs to, who writes, and who is told how it ended."""

    id: s.RouteId
    planned: PlannedRoute
    order: SyncOrder
    writer: WriterId
    report: Callable[[RouteEnd], Awaitable[Accepted]]


class RouteRunner:
    """One route of one order. over: told once, when it has ended and starts no write any more."""

    def __init__(
        self, task: RouteTask, writes: RouteWrites, client: PeerClient, over: Callable[[s.RouteOver], None]
    ) -> None:
        self.machine = r.Route(task.planned)
        self._task = task
        self._writes = writes
        self._client = client
        self._over = over
        self._events: asyncio.Queue[object] = asyncio.Queue()
        self._to_receipt: list[r.Receipt] = []
        self._receipting: set[asyncio.Task[None]] = set()
        self._began = time.monotonic()
        writes.told = self.feed

    @property
    def grant(self) -> str:
        """Under which it writes."""
        return self._task.planned.grant

    @property
    def session(self) -> str:
        """To which it writes."""
        return self._task.planned.region.session

    def feed(self, event: object) -> None:
        """Hand the machine an event: Filled, AllFilled or Cancel."""
        self._events.put_nowait(event)

    def move(self, lane: int) -> None:
        """Go on through that lane."""
        self._writes.move(lane)

    async def run(self) -> None:
        """Until the route has ended, and its last receipt and its report were sent.

        What nothing foresees ends the route too. Raises PeerError where the coordinator did not take the report.
        """
        planned = self._task.planned
        watching = asyncio.create_task(self._watch())
        ended = r.End(False, False, UNEXPECTED, f"{planned.engine}, rank {planned.rank}: cut off")
        try:
            ended = await self._follow()
        except Exception as error:
            # Writes may be in flight: no last receipt, so that the target fences before it grants again.
            log.exception("a route failed", engine=planned.engine, rank=planned.rank)
            self._writes.strand()
            ended = r.End(False, False, UNEXPECTED, f"{planned.engine}, rank {planned.rank}: {error!r}")
        except BaseException:
            await self._writes.cancel()
            raise
        finally:
            watching.cancel()
            self._over(s.RouteOver(self._task.id, ended.verified, self._writes.close()))
        await failpoints.reach("source", "verified")
        try:
            # First of all, so that the others wait no longer: a last receipt to a dead target takes a stall timeout.
            end = self._end(ended)
            feeds.route_ended(end)
            log.info("route ended", engine=planned.engine, rank=planned.rank, reason=end.reason, nbytes=end.nbytes)
            await self._task.report(end)
        finally:
            try:
                while self._receipting:
                    await asyncio.wait(self._receipting)
            except asyncio.CancelledError:
                for request in self._receipting:
                    request.cancel()
                raise

    async def _watch(self) -> None:
        """Look at the target before there is a bucket to write: a dead one costs its engine no deadline."""
        planned = self._task.planned
        try:
            await self._writes.probe()
        except TransferError as error:
            self.feed(r.Cancel(error.reason, f"{planned.engine}, rank {planned.rank}: {error}"))
        except Exception as error:  # the route would wait for a worker that cannot be started
            log.exception("no worker for a route", engine=planned.engine, rank=planned.rank)
            self.feed(r.Cancel(UNEXPECTED, f"{planned.engine}, rank {planned.rank}: {error!r}"))

    async def _follow(self) -> r.End:
        ended: r.End | None = None
        while ended is None:
            event = await self._events.get()
            for action in self.machine.handle(event, time.monotonic()):
                match action:
                    case r.Write(buckets):
                        self._writes.add(buckets)
                    case r.Receipt():
                        self._receipt(action)
                    case r.StopWriting():
                        self._writes.stop()
                    case r.End():
                        ended = action
        return ended

    def _end(self, end: r.End) -> RouteEnd:
        task, planned = self._task, self._task.planned
        seconds = time.monotonic() - self._began
        return RouteEnd(
            term=task.order.term,
            sync=task.order.sync,
            writer=task.writer,
            target=planned.target,
            rank=planned.rank,
            grant=planned.grant,
            verified=end.verified,
            reason=end.reason,
            message=end.message,
            nbytes=self.machine.sent_bytes,
            resent=self.machine.resent_bytes,
            seconds=seconds,
            transport=self._writes.transport,
        )

    # --- receipts ---

    def _receipt(self, receipt: r.Receipt) -> None:
        self._to_receipt.append(receipt)
        self._send_receipts()

    def _send_receipts(self) -> None:
        """A few requests at a time; what comes meanwhile goes together in the next. The one that closes our part
        waits for all before it: the target takes none after it."""
        while self._to_receipt and len(self._receipting) < RECEIPTS:
            if self._receipting and any(receipt.last for receipt in self._to_receipt):
                return
            batch, self._to_receipt = self._to_receipt, []
            request = asyncio.create_task(self._send_receipt(batch))
            self._receipting.add(request)
            request.add_done_callback(self._receipted)

    def _receipted(self, request: asyncio.Task[None]) -> None:
        self._receipting.discard(request)
        if not request.cancelled():
            self._send_receipts()

    async def _send_receipt(self, batch: list[r.Receipt]) -> None:
        planned = self._task.planned
        try:
            answer = await self._client.persist(
                planned.address, "/v1/receipts", ReceiptsAnswer, self._receipts(batch),
                seconds=self._task.order.stall_seconds,
            )  # fmt: skip
        except PeerError as error:
            log.info("receipt unanswered", engine=planned.engine, why=str(error))
            self.feed(r.ReceiptBroke(error.reason, str(error)))
        except Exception as error:  # without an event the route would wait for its answer for ever
            log.exception("a receipt failed", engine=planned.engine)
            reason = error.reason if isinstance(error, WeightSyncError) else UNEXPECTED
            self.feed(r.ReceiptBroke(reason, str(error)))
        else:
            self.feed(r.Checked(answer.verified, answer.unequal))

    def _receipts(self, batch: list[r.Receipt]) -> Receipts:
        task, planned = self._task, self._task.planned
        buckets: tuple[BucketDigest, ...] = tuple(bucket for receipt in batch for bucket in receipt.buckets)
        return Receipts(
            term=task.order.term,
            grant=planned.grant,
            rank=planned.rank,
            writer=task.writer,
            buckets=buckets,
            last=any(receipt.last for receipt in batch),
            failed=next((receipt.failed for receipt in batch if receipt.failed), ""),
        )
