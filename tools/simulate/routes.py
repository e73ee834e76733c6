"""Runs one Route: writes through lanes, receipts, the report of its end; as drivers/route_runner.py."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tools.simulate.clock import Future, Loop, TimedOut, Work
from tools.simulate.memory import SIZE, ArenaFile
from tools.simulate.transfer import WriteCall
from weightsync.digests import BucketDigest
from weightsync.errors import PeerError, TransferError
from weightsync.wire import v1
from weightsync_agent.protocol import route as r
from weightsync_agent.protocol import source_events as s
from weightsync_agent.transfer.supervisor import DIED, STALLED, STUCK

if TYPE_CHECKING:
    from tools.simulate.source_rank import SourceRank

LANES = 3  # write calls in flight per route
STOPPED = "Stopped"


class RouteRunner:
    """One route of one order."""

    def __init__(self, source: SourceRank, action: s.StartRoute, arena: ArenaFile) -> None:
        self.source = source
        self.world = source.world
        self.loop: Loop = source.loop
        self.id = action.route
        self.planned = action.planned
        self.order = action.order
        self.arena = arena
        self.lane = action.lane
        self.machine = r.Route(action.planned)
        self.name = f"{source.agent.life.name} route {action.planned.target}/{action.planned.rank}"
        self.events: deque[object] = deque()
        self.some: Future | None = None
        self.to_write: deque[BucketDigest] = deque()
        self.writing: dict[int, int] = {}  # calls by lane
        self.calls: list[tuple[int, WriteCall]] = []  # that have not ended, stalled ones included
        self.broke: TransferError | None = None
        self.blocked = False  # this lane takes no write: wait for the next
        self.open: set[int] = set()  # lanes through which a write's end is not known
        self.over = False
        self.to_receipt: list[r.Receipt] = []
        self.receipting = False
        source.agent.spawn(self._run())

    def feed(self, event: object) -> None:
        """Hand the machine an event."""
        self.events.append(event)
        if self.some is not None:
            some, self.some = self.some, None
            some.set()

    def _run(self) -> Work:
        yield self.loop.sleep(0.001)
        if self.planned.region.session not in self.world.wires.sessions:  # the probe
            self.feed(r.Cancel("Unreachable", "nobody listens there"))
        over = False
        while True:  # also what comes after its end, in silence
            while not self.events:
                self.some = Future(self.loop)
                yield self.some
            for action in self.world.handle(self.name, self.machine, self.events.popleft()):
                match action:
                    case r.Write(buckets):
                        self.to_write.extend(buckets)
                        self._start_writers()
                    case r.Receipt():
                        if action.last:
                            self._closes()
                        self.to_receipt.append(action)
                        if not self.receipting:
                            self.receipting = True
                            self.source.agent.spawn(self._send_receipts())
                    case r.StopWriting():
                        self._stop()
                    case r.End() if not over:
                        over = True
                        self._ends(action)

    def _closes(self) -> None:
        """No write of ours is on its way, whatever the machine believes."""
        planned = self.planned
        self.world.ledger.closed(self.name, planned.region.session, planned.grant, self.source.writer.key)

    def _ends(self, ended: r.End) -> None:
        self.over = True
        self.to_write.clear()
        open_lanes = tuple(sorted(self.open | {lane for lane, call in self.calls if not call.ended}))
        for _, call in self.calls:
            if not call.ended:
                self.world.wires.drop(call, STOPPED)
        self.source.feed(s.RouteOver(self.id, ended.verified, open_lanes))
        self.source.agent.spawn(self._tell(ended))

    def _tell(self, ended: r.End) -> Work:
        try:
            yield from self.source.persist("/v1/routes", self._end(ended))
        except PeerError as error:
            self.loop.note(self.name, "end untold", str(error))

    def _end(self, end: r.End) -> v1.RouteEnd:
        planned = self.planned
        return v1.RouteEnd(
            term=self.order.term, sync=self.order.sync, writer=self.source.writer, target=planned.target,
            rank=planned.rank, grant=planned.grant, verified=end.verified, reason=end.reason, message=end.message,
            nbytes=self.machine.sent_bytes, resent=self.machine.resent_bytes,
        )  # fmt: skip

    # --- writes ---

    def move(self, lane: int) -> None:
        """Go on through another lane; the old one's writes end, or are not started."""
        old, self.lane, self.blocked = self.lane, lane, False
        for number, call in self.calls:
            if number != lane and not call.ended:
                self.world.wires.drop(call, STOPPED)
        self._left(old)
        self._start_writers()

    def _left(self, lane: int) -> None:
        """Say that an old lane is free of us, once it is."""
        if lane != self.lane and lane not in self.open and not self.writing.get(lane):
            self.source.feed(s.RouteMoved(self.id, lane))

    def _start_writers(self) -> None:
        while self.to_write and sum(self.writing.values()) < LANES and self.broke is None and not self.blocked:
            bucket = self.to_write.popleft()
            self.writing[self.lane] = self.writing.get(self.lane, 0) + 1
            self.source.agent.spawn(self._write(bucket, self.lane))

    def _write(self, bucket: BucketDigest, lane: int) -> Work:
        entry: tuple[int, WriteCall] | None = None
        try:
            worker = yield from self.source.worker(lane)
            if lane != self.lane or self.broke is not None:
                raise TransferError("stopped before its worker was there", reason=STOPPED, quiet=True)
            if worker.stuck_until > self.loop.now:
                raise TransferError("held in its first contact", reason=STUCK, quiet=True)
            planned = self.planned
            call = WriteCall(worker, self.arena, planned.region.session, planned.grant, self.source.writer.key)
            entry = (lane, self.world.wires.write(call, bucket))
            self.calls.append(entry)
            yield from self._follow(call)
        except TransferError as error:
            left = entry is None or any(entry[1].left.values())
            self._failed(bucket, lane, error, left=left)
        self.writing[lane] -= 1
        if entry is not None and entry[1].ended:
            self.calls.remove(entry)
        if self.over:
            return
        if lane != self.lane:
            self._left(lane)
        self._settle()
        self._start_writers()

    def _failed(self, bucket: BucketDigest, lane: int, error: TransferError, *, left: bool) -> None:
        if error.reason == STALLED:
            self.open.add(lane)
            if not self.over:
                self.source.feed(s.RouteStalled(self.id, lane))
        elif error.quiet and error.reason in {STOPPED, STUCK, DIED} and self.broke is None:  # decision
            if lane == self.lane:
                self.blocked = True
            if error.reason == STUCK and not self.over:
                self.source.feed(s.LaneHeld(lane))
            self.feed(r.Unsent((bucket.offset,) if left else ()))
            return
        self._note(error)

    def _note(self, error: TransferError) -> None:
        if self.broke is None or not error.quiet:
            self.broke = error
        self.to_write.clear()
        for _, call in self.calls:
            if not call.ended:
                self.world.wires.drop(call, STOPPED)

    def _stop(self) -> None:
        self._note(TransferError("stopped", reason=STOPPED, quiet=True))
        self._settle()

    def _settle(self) -> None:
        if self.broke is not None and not any(self.writing.values()):
            self.feed(r.WriteBroke(self.broke.quiet, self.broke.reason, str(self.broke)))

    def _follow(self, call: WriteCall) -> Work:
        wires = self.world.wires
        while True:
            try:
                yield self.loop.within(call.next(self.loop), self.order.stall_seconds)
            except TimedOut:
                raise wires.stalled(call) from None
            while call.events:
                what, bucket = call.events.popleft()
                if what == "done":
                    self.feed(r.Written((bucket * SIZE,)))
                    continue
                failure = wires.failure(call, what)
                if failure is not None:
                    raise failure
                return

    # --- receipts ---

    def _send_receipts(self) -> Work:
        while self.to_receipt:
            batch, self.to_receipt = self.to_receipt, []
            request = v1.Receipts(
                term=self.order.term, grant=self.planned.grant, rank=self.planned.rank, writer=self.source.writer,
                buckets=tuple(bucket for receipt in batch for bucket in receipt.buckets),
                last=any(receipt.last for receipt in batch),
                failed=next((receipt.failed for receipt in batch if receipt.failed), ""),
            )  # fmt: skip
            agent = self.source.agent
            try:
                answer = yield from agent.persist(self.planned.address, "/v1/receipts", request,
                                                  self.order.stall_seconds)  # fmt: skip
            except PeerError as error:
                self.feed(r.ReceiptBroke(error.reason, str(error)))
                continue
            self.feed(r.Checked(answer.verified, answer.unequal))
        self.receipting = False
