"""Runs one protocol.route.Route: writes, receipts, and the report of its end."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from weightsync.buckets import Bucket
from weightsync.digests import BucketDigest
from weightsync.errors import PeerError, TransferError, WeightSyncError
from weightsync.wire.v1 import Accepted, PlannedRoute, Receipts, ReceiptsAnswer, RouteEnd, SyncOrder, WriterId
from weightsync_agent import failpoints
from weightsync_agent.observability import metrics
from weightsync_agent.peers.client import PeerClient
from weightsync_agent.protocol import route as r
from weightsync_agent.transfer.supervisor import STALLED, TransferWorker

log = structlog.get_logger(__name__)

LANES = 3  # write calls in flight per route: one on the wire, one behind it, one being receipted
BATCH = 4  # buckets of one write call
UNEXPECTED = "SourceFailed"  # an error that nothing foresees: what it left in flight is not known


class RouteRunner:
    """One route of one order. report: tells the coordinator how it ended."""

    def __init__(
        self,
        planned: PlannedRoute,
        order: SyncOrder,
        writer: WriterId,
        *,
        arena: Path,
        worker: TransferWorker,
        client: PeerClient,
        report: Callable[[RouteEnd], Awaitable[Accepted]],
    ) -> None:
        self.machine = r.Route(planned)
        self.order = order
        self.writer = writer
        self.stalled = False  # a write of ours may still read from the arena: the worker is to be replaced
        self._arena = arena
        self._worker = worker
        self._client = client
        self._report = report
        self._events: asyncio.Queue[object] = asyncio.Queue()
        self._to_write: deque[BucketDigest] = deque()
        self._to_receipt: list[r.Receipt] = []
        self._writers: set[asyncio.Task[None]] = set()
        self._broke: TransferError | None = None
        self._receipting: asyncio.Task[None] | None = None
        self._began = time.monotonic()

    def feed(self, event: object) -> None:
        """Hand the machine an event: Filled, AllFilled or Cancel."""
        self._events.put_nowait(event)

    async def run(self) -> None:
        """Until the route has ended and its last receipt was sent. What nothing foresees ends the route too."""
        try:
            ended = await self._follow()
        except Exception as error:
            # Writes may be in flight: no last receipt, so that the target fences before it grants again.
            planned = self.machine.planned
            log.exception("a route failed", engine=planned.engine, rank=planned.rank)
            self.stalled = True
            self._to_write.clear()
            self._broke = self._broke or TransferError(str(error), reason=UNEXPECTED)
            ended = r.End(False, False, UNEXPECTED, f"{planned.engine}, rank {planned.rank}: {error!r}")
        if self._receipting is not None:
            await self._receipting
        await failpoints.reach("source", "verified")
        await self._report(self._end(ended))

    async def _follow(self) -> r.End:
        planned = self.machine.planned
        try:
            await self._worker.probe(planned.region.session, deadline_seconds=min(5.0, self.order.stall_seconds))
        except TransferError as error:
            self.feed(r.Cancel(error.reason, f"{planned.engine}, rank {planned.rank}: {error}"))
        ended: r.End | None = None
        while ended is None:
            event = await self._events.get()
            for action in self.machine.handle(event, time.monotonic()):
                match action:
                    case r.Write(buckets):
                        self._to_write.extend(buckets)
                        self._start_writers()
                    case r.Receipt():
                        self._receipt(action)
                    case r.StopWriting():
                        self._stop()
                    case r.End():
                        ended = action
        return ended

    def _end(self, end: r.End) -> RouteEnd:
        planned = self.machine.planned
        seconds = time.monotonic() - self._began
        nbytes = self.machine.sent_bytes
        metrics.BYTES_WRITTEN.labels(transport=self._worker.capabilities.transport).inc(nbytes)
        metrics.PHASE_SECONDS.labels(phase="write").observe(seconds)
        return RouteEnd(
            term=self.order.term,
            sync=self.order.sync,
            writer=self.writer,
            target=planned.target,
            rank=planned.rank,
            grant=planned.grant,
            verified=end.verified,
            reason=end.reason,
            message=end.message,
            nbytes=nbytes,
            resent=self.machine.resent_bytes,
            seconds=seconds,
            transport=self._worker.capabilities.transport,
        )

    # --- writes ---

    def _start_writers(self) -> None:
        while self._to_write and len(self._writers) < LANES and self._broke is None:
            batch = [self._to_write.popleft() for _ in range(min(BATCH, len(self._to_write)))]
            self._writers.add(asyncio.create_task(self._write(batch)))

    async def _write(self, batch: list[BucketDigest]) -> None:
        """One call. However it ends, this task is no writer any more, and the last one to end says what broke."""
        runs = [Bucket(offset=b.offset, nbytes=b.nbytes) for b in batch]
        region = self.machine.planned.region
        try:
            async for bucket in self._worker.write(self._arena, runs, region, stall_seconds=self.order.stall_seconds):
                self.feed(r.Written((bucket.offset,)))
                await failpoints.reach("source", "writing")
        except TransferError as error:
            self._note(error)
        except BaseException as error:
            self._note(TransferError(f"{type(error).__name__}: {error}", reason=UNEXPECTED))
            if not isinstance(error, Exception):
                raise
            log.exception("a write failed", engine=self.machine.planned.engine)
        finally:
            self._wrote()

    def _wrote(self) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._writers.discard(task)
        if self._broke is None:
            self._start_writers()
        elif not self._writers:
            # Only now nothing of ours is in flight, and it can be said whether bytes may still land.
            planned = self.machine.planned
            message = f"{planned.engine}, rank {planned.rank}: {self._broke}"
            self.feed(r.WriteBroke(self._broke.quiet, self._broke.reason, message))

    def _note(self, error: TransferError) -> None:
        """Keep the worst of several failures: one after which bytes may still land wins."""
        self.stalled = self.stalled or error.reason in {STALLED, UNEXPECTED}
        if self._broke is None or not error.quiet:
            self._broke = error
        self._to_write.clear()

    def _stop(self) -> None:
        """Start no further write; when those in flight are terminal, the machine learns it as WriteBroke."""
        self._to_write.clear()
        if self._broke is None:
            self._broke = TransferError("stopped", quiet=True)
        if not self._writers:
            self.feed(r.WriteBroke(True, "Stopped", "stopped"))

    # --- receipts ---

    def _receipt(self, receipt: r.Receipt) -> None:
        self._to_receipt.append(receipt)
        if self._receipting is None or self._receipting.done():
            self._receipting = asyncio.create_task(self._send_receipts())

    async def _send_receipts(self) -> None:
        """One request at a time; what comes meanwhile goes together in the next."""
        while self._to_receipt:
            batch, self._to_receipt = self._to_receipt, []
            buckets = tuple(bucket for receipt in batch for bucket in receipt.buckets)
            request = Receipts(
                term=self.order.term,
                grant=self.machine.planned.grant,
                rank=self.machine.planned.rank,
                writer=self.writer,
                buckets=buckets,
                last=any(receipt.last for receipt in batch),
                failed=next((receipt.failed for receipt in batch if receipt.failed), ""),
            )
            try:
                answer = await self._client.persist(
                    self.machine.planned.address,
                    "/v1/receipts",
                    ReceiptsAnswer,
                    request,
                    seconds=self.order.stall_seconds,
                )
            except PeerError as error:
                log.info("receipt unanswered", engine=self.machine.planned.engine, why=str(error))
                self.feed(r.ReceiptBroke(error.reason, str(error)))
                continue
            except Exception as error:  # without an event the route would wait for its answer for ever
                log.exception("a receipt failed", engine=self.machine.planned.engine)
                reason = error.reason if isinstance(error, WeightSyncError) else UNEXPECTED
                self.feed(r.ReceiptBroke(reason, str(error)))
                continue
            self.feed(r.Checked(answer.verified, answer.unequal))
