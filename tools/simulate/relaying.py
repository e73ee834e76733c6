"""A relay: a thin driver of a coordinator's orders at the engine that reads, as drivers/relaying.py.

The digests that count are computed where the bytes came to; what is read is what the parent's arena holds then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tools.simulate.clock import Cancelled, Future, Lock, Task, TimedOut, Work
from tools.simulate.joining import Reader
from tools.simulate.memory import number_of
from tools.simulate.rank_target import DIGEST, WIRE_CAPABILITIES, RankTarget, TargetArena
from weightsync.errors import PeerError, Refused, TransferError, WeightSyncError
from weightsync.wire import v1
from weightsync_agent.drivers.relaying import SHARE, ParentLost

if TYPE_CHECKING:
    from tools.simulate.target_side import EngineAgent


@dataclass(frozen=True)
class Into:
    """What is read into."""

    target: RankTarget
    arena: TargetArena


class Relaying:
    """One engine's."""

    def __init__(self, agent: EngineAgent) -> None:
        self.agent = agent
        self.world = agent.world
        self.known: v1.RelayOrder | None = None
        self.ordered_at = 0.0
        self.ended: v1.RelayEnd | None = None
        self.work: Task | None = None
        self.over = Future(self.world.loop)
        self.changing = Lock(self.world.loop)

    def feeds(self, silent_after: float) -> bool:  # decision
        """A sync has the engine read, or it has read all and may be committed to within that time."""
        if self.known is None or self.world.loop.now > self.ordered_at + silent_after:
            return False
        return self.ended is None or self.ended.verified

    def order(self, order: v1.RelayOrder) -> Work:
        """How it ended, or after a while that it has not."""
        yield self.changing.acquire()
        try:
            known = self.known
            if known is None or (known.sync, known.turn) != (order.sync, order.turn):
                self._check(order, known)
                yield from self._stop()
                self.known, self.ordered_at, self.ended = order, self.world.loop.now, None
                self.world.ledger.effect(self.agent.pod.name, "a relay", order.term, order.coordinator)
                self.over = Future(self.world.loop)
                self.work = self.agent.spawn(self._run(order, self.over))
        finally:
            self.changing.release()
        over = self.over
        try:
            yield self.world.loop.within(over, SHARE * order.stall_seconds)
        except TimedOut:
            self.world.loop.note(self.agent.life.name, "relay goes on")
        known = self.known
        if known is None or (known.sync, known.turn) != (order.sync, order.turn):
            raise Refused("that turn is over", reason="RelayOver")
        return self.ended or v1.RelayEnd(ended=False)

    def _check(self, order: v1.RelayOrder, known: v1.RelayOrder | None) -> None:  # decision
        if known is not None and known.sync == order.sync and known.turn > order.turn:
            raise Refused("a later turn has begun", reason="RelayOver")
        if {rank.rank for rank in order.ranks} != self.agent.targets.keys():
            raise Refused("other ranks", reason="RanksDiffer")
        for rank in order.ranks:
            self.agent.targets[rank.rank].granted(rank.grant).machine.check_passing(rank.grant, 0)

    def end(self) -> Work:
        """No worker of ours reads any more afterwards."""
        yield self.changing.acquire()
        try:
            yield from self._stop()
        finally:
            self.changing.release()

    def _stop(self) -> Work:
        self.known = None
        work, cancelled = self.work, False
        if work is not None:
            work.cancel()
        while work is not None and not work.done:
            try:
                yield work
            except Cancelled:
                cancelled = cancelled or not work.done
        if cancelled:
            raise Cancelled

    def _run(self, order: v1.RelayOrder, over: Future) -> Work:
        until = self.world.loop.now + order.deadline_seconds
        try:
            for rank in order.ranks:
                yield from self._rank(self.agent.targets[rank.rank], rank, order, until)
            end = v1.RelayEnd(ended=True, verified=True, nbytes=1, transport="tcp")
        except ParentLost as error:
            end = v1.RelayEnd(ended=True, lost=True, reason=error.reason, message=str(error))
        except WeightSyncError as error:
            end = v1.RelayEnd(ended=True, reason=error.reason, message=str(error))
        except Cancelled:
            over.set()
            raise
        self.ended = end
        over.set()

    def _rank(self, target: RankTarget, rank: v1.RelayRank, order: v1.RelayOrder, until: float) -> Work:
        into = Into(target, (yield from target.begin_relay(rank.grant)))
        readers: list[Reader] = []
        try:
            yield from self._follow(into, rank, order, readers, until)
        except (WeightSyncError, Cancelled):
            yield from self._reads_no_more(readers, into)
            raise
        yield from self._reads_no_more(readers, into)

    def _reads_no_more(self, readers: list[Reader], into: Into) -> Work:
        yield from self.agent.joining.ended_for_sure(readers, into.target, into.arena)

    def _follow(
        self, into: Into, rank: v1.RelayRank, order: v1.RelayOrder, readers: list[Reader], until: float
    ) -> Work:
        yield self.world.loop.sleep(self.world.start_seconds)
        if self.world.fault_chance("worker start fails"):
            raise TransferError("no worker")
        reader = Reader(self.world, into.arena)
        readers.append(reader)
        self.agent.workers.append(reader)
        session, after, told = "", 0, set[int]()
        while len(told) < len(self.world.owners):
            if self.world.loop.now > until:
                raise TransferError("the sync's time is over", reason="RelayOverdue")
            answer = yield from self._ask(order, rank, after)
            if session not in ("", answer.region.session):
                raise ParentLost(TransferError("its worker was replaced", reason="PeerGone"))
            session, after = answer.region.session, after + len(answer.buckets)
            for bucket in answer.buckets:
                told.add(number_of(bucket.offset))
                if into.arena.machine.verified.get(bucket.offset) != bucket:
                    yield from self._bucket(reader, into, session, bucket)

    def _ask(self, order: v1.RelayOrder, rank: v1.RelayRank, after: int) -> Work:
        agent = self.agent
        request = v1.PassRequest(
            reader=agent.pod.uid, term=order.term, rank=rank.rank, grant=rank.parent, after=after,
            wait=SHARE * order.stall_seconds, ours=WIRE_CAPABILITIES,
        )  # fmt: skip
        way = (agent.life, agent.pod.address, order.address)
        try:
            return (yield from self.world.network.persist(way, "/v1/passes", request, order.stall_seconds))
        except PeerError as error:
            raise ParentLost(error) from error

    def _bucket(self, reader: Reader, into: Into, session: str, bucket: Any) -> Work:
        done = reader.read(session, number_of(bucket.offset))
        try:
            yield self.world.loop.within(done, self.world.stall_seconds)
        except TimedOut:
            raise ParentLost(TransferError("stalled", reason="Stalled")) from None
        except TransferError as error:
            raise ParentLost(error) from error
        yield self.world.loop.sleep(DIGEST)
        [computed] = into.arena.digests([bucket])
        if not (yield from into.target.pulled(into.arena, computed, bucket)):
            raise ParentLost(TransferError("other bytes", reason="ArenaChanged"))
