"""A join by pull: a thin driver of Joiner and Lending, as drivers/joining.py, pull.py, holding.py and neighbours.py.

A read takes the holder's bytes at one moment and lands them at a later one, piece by piece, as long as the reading
process lives: also when the call that asked for it has failed or was given up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tools.simulate.clock import Cancelled, Future, Task, TimedOut, Work
from tools.simulate.leases import Leases
from tools.simulate.memory import RUBBISH, number_of
from tools.simulate.rank_target import DIGEST, WIRE_CAPABILITIES, RankTarget, TargetArena
from tools.simulate.transfer import LATE, WIRE
from weightsync.digests import BucketDigest
from weightsync.errors import PeerError, Refused, TransferError, WeightSyncError
from weightsync.plan import Plan
from weightsync.wire import v1
from weightsync_agent.drivers.joining import FAILED, RENEWALS, SILENT, TICK
from weightsync_agent.drivers.pull import SHARE
from weightsync_agent.drivers.reading import Told
from weightsync_agent.protocol import joiner as j
from weightsync_agent.protocol.holders import Offer, offers_of
from weightsync_agent.protocol.lending import Lending
from weightsync_agent.protocol.readers import MOST

if TYPE_CHECKING:
    from tools.simulate.target_side import EngineAgent
    from tools.simulate.world import World

SPOILT = 0.0  # share of read pieces that are not what was sent; a fault spoils some, and most of those are writes
STALE = 0.3  # share of searches that go by the plan of the one before


class Reader:
    """A process of ours that reads into one arena. ``dead`` is done once no byte of it can come any more.

    seconds: that a piece takes, at most, both ways.
    """

    def __init__(self, world: World, into: TargetArena, seconds: float = WIRE) -> None:
        self.world = world
        self.seconds = seconds
        self.into = into
        self.grant = into.arena.header.grant
        self.alive = True
        self.ending = False
        self.dead = Future(world.loop)

    def kill(self) -> None:
        """SIGKILL; it has ended a moment later."""
        if not self.ending:
            self.ending = True
            self.world.loop.at(self.world.kill_seconds, self._end)

    def _end(self) -> None:
        self.alive = False
        self.dead.set()

    def read(self, session: str, bucket: int) -> Future:
        """Done when all its pieces are there; fails where the peer is gone."""
        done, left = Future(self.world.loop), [self.world.pieces]
        for piece in range(self.world.pieces):
            self.world.loop.at(self._delay(), self._take, (session, bucket, piece), done, left)
        return done

    def _delay(self) -> float:
        wires, rng = self.world.wires, self.world.rng
        late = wires.late and rng.random() < wires.late
        return rng.random() * LATE if late else 0.001 + rng.random() * self.seconds

    def _take(self, what: tuple[str, int, int], done: Future, left: list[int]) -> bool:
        wires, now = self.world.wires, self.world.loop.now
        session, bucket, piece = what
        until = max(wires.stalls.get(session, 0.0), wires.held.get(session, 0.0))
        if until > now:
            self.world.loop.at(until - now + self._delay(), self._take, what, done, left)
            return True
        holder = wires.sessions.get(session)
        if holder is None:
            done.fail(TransferError(f"reading from {session}: the peer is gone"))
            return True
        step = holder.arenas[session].content[bucket][piece]  # type: ignore[attr-defined]
        if wires.corrupt:
            wires.corrupt -= 1
            step = RUBBISH
        if SPOILT and self.world.rng.random() < SPOILT:
            step = RUBBISH
        if wires.fail:
            wires.fail -= 1
            done.fail(TransferError(f"reading from {session} failed"))  # and the bytes come all the same
        self.world.loop.at(self._delay(), self._land, (bucket, piece, step), done, left)
        return True

    def _land(self, what: tuple[int, int, int], done: Future, left: list[int]) -> bool:
        if not self.alive:
            return False
        bucket, piece, step = what
        self.world.ledger.read_lands(self.into, self.grant, bucket)
        self.into.arena.put(bucket, piece, step)
        left[0] -= 1
        if not left[0]:
            done.set()
        return True


class Holding:
    """What this engine can lend: its ranks for Lending; and what it answers is looked at."""

    def __init__(self, agent: EngineAgent) -> None:
        self.agent = agent
        most = 1 if agent.world.joins_together else MOST
        self.lending = Lending(agent.pod.uid, self, most=most, seconds=agent.world.lease_seconds)
        self.leases = Leases(agent.pod.name, most)

    # --- what Lending asks ---

    @property
    def ranks(self) -> Mapping[int, RankTarget]:
        """All of them; none where some are in other pods."""
        return self.agent.targets if self.agent.pod.nodes == 1 else {}

    @property
    def programs(self) -> dict[int, str]:
        """By rank."""
        return {rank: target.program for rank, target in self.agent.targets.items()}

    @property
    def decided(self) -> v1.Decided | None:
        """The newest that the engine was told to serve."""
        return self.agent.decided

    @property
    def reads(self) -> v1.Lease | None:
        """The lease under which it reads one itself."""
        return self.agent.joining.machine.grows

    def part(self, rank: int, request: v1.LeaseRequest, growing: v1.Lease | None) -> v1.HeldRank:
        """One rank's."""
        target = self.agent.targets[rank]
        arena = target.lendable(request.version) if growing is None else target.growing(request.version)
        assert arena is not None  # noqa: S101 - Lending asked, within the same event
        region = v1.Region(session=arena.session, address=4096, nbytes=arena.arena.header.nbytes)
        if growing is None:
            buckets = arena.journal_rank().buckets
            return v1.HeldRank(rank=rank, program=target.program, region=region, buckets=buckets)
        held = next(held for held in growing.ranks if held.rank == rank)
        return held.model_copy(update={"region": region, "grant": arena.machine.grows(request.version)})

    # --- requests ---

    def held(self) -> v1.Held:
        """For GET /v1/held."""
        return self.lending.held(self.agent.loop.now)

    def lease(self, request: v1.LeaseRequest) -> v1.Lease:
        """Let it read, or go on reading."""
        now, version = self.agent.loop.now, request.version
        serves = self.decided is not None and self.decided.version == version
        reads = self.reads is not None and self.reads.decided.version == version
        lies = bool(self.ranks) and all(rank.lendable(version) is not None for rank in self.ranks.values())
        try:
            lease = self.lending.lease(request, now)
        except Refused as error:
            self.leases.refused(request, error.reason, now, lies=lies)
            raise
        self.leases.lent(request, lease.seconds, now, own=serves or reads)
        return lease

    def more(self, request: v1.MoreRequest) -> Work:
        """What has come of what it reads from here."""
        if request.rank not in self.agent.targets or not self.lending.readers.reads(
            request.reader, self.agent.loop.now
        ):
            raise Refused("it is not lent", reason="NotHeld", status=404)
        return self.agent.targets[request.rank].grown(request)

    def end(self, request: v1.LeaseEnd) -> v1.Accepted:
        """It reads no more."""
        self.lending.end(request.reader, self.agent.loop.now)
        self.leases.ended(request.reader)
        return v1.Accepted()


def _outlast(tasks: Iterable[Task]) -> Work:
    """Wait until each has ended, in whichever way; whether who waits was cancelled meanwhile, and is to raise it."""
    cancelled = False
    for task in tuple(tasks):
        while not task.done:
            try:
                yield task
            except (WeightSyncError, TimedOut, Cancelled):
                cancelled = cancelled or not task.done  # else that was the task's own end
    return cancelled


class Joining:
    """One engine's."""

    def __init__(self, agent: EngineAgent) -> None:
        self.agent = agent
        self.world = agent.world
        self.machine = j.Joiner(agent.pod.uid)
        self.work: Task | None = None
        self.ending: list[Task] = []
        self.plan: Plan | None = None

    @property
    def applies(self) -> bool:
        """The engine takes over what was pulled."""
        return self.machine.state is j.JoinerState.APPLYING

    def look(self) -> None:
        """See whether the engine needs a version."""
        world = self.world
        needs = self.agent.needs(world.deadline_seconds + SILENT * world.stall_seconds)
        if isinstance(needs, j.Needs):
            self.machine.programs = {rank: target.program for rank, target in self.agent.targets.items()}
        self._feed(needs)

    def end(self, why: str) -> Work:
        """No worker of ours reads any more afterwards."""
        self._feed(j.NeedsNothing(why))
        yield from self._ended()

    def _ended(self) -> Work:
        cancelled = yield from _outlast(self.ending)
        self.ending = [task for task in self.ending if not task.done]
        if cancelled:
            raise Cancelled

    def _feed(self, event: object) -> None:
        for action in self.world.handle(self.agent.life.name, self.machine, event):
            match action:
                case j.Seek():
                    self._do(self._seek())
                case j.AskLease(offer, aim):
                    self._do(self._lease(offer, aim))
                case j.BeginPull(offer, lease):
                    self._do(self._pull(offer, lease))
                case j.GiveBack(offer):
                    self._leave(offer)
                case j.Apply(decided):
                    self._do(self._apply(decided))
                case j.StopPull():
                    if self.work is not None:
                        self.ending.append(self.work)
                        self.work.cancel()
                case j.Told(message):
                    self.world.loop.note(self.agent.life.name, "join", message)
                case _:
                    raise TypeError(f"no such action: {action!r}")

        if self.machine.state is j.JoinerState.RESTING and self.machine.hopes:
            self.agent.spawn(self._again())

    def _again(self) -> Work:
        yield self.world.loop.sleep(max(0.0, self.machine.again_at - self.world.loop.now) + TICK)
        if self.machine.state is j.JoinerState.RESTING:
            self.look()

    def _do(self, work: Work) -> None:
        self.work = self.agent.spawn(self._run(work))

    def _run(self, work: Work) -> Work:
        yield from self._ended()
        try:
            event = yield from work
        except (WeightSyncError, TimedOut) as error:
            event = FAILED[self.machine.state](str(error))
        self._feed(event)

    # --- its actions ---

    def _ask(self, address: str, path: str, body: Any = None) -> Future:
        agent = self.agent
        return self.world.network.call((agent.life, agent.pod.address, address), path, body, self.world.stall_seconds)

    def _seek(self) -> Work:
        yield self.world.loop.sleep(0.001 + self.world.rng.random() * 0.004)
        planner = self.world.planner
        if self.plan is None or self.world.rng.random() >= STALE:
            self.plan = planner.plan if planner.down_until <= self.world.loop.now else None
        plan = self.plan
        if plan is None or not plan.coordinator:
            return j.AskFailed("no plan")
        told = None
        source = plan.source(plan.coordinator)
        if source is not None:
            try:
                told = yield self._ask(source.address, "/v1/held", self.agent.pod.uid)
            except PeerError:
                self.plan = None
        said, answered = (told.decided if told is not None else None), told is not None
        if answered and said is None:
            return j.Asked((), None, answered=True)
        offers = []
        able = [engine for engine in plan.engines if self._alike(engine)]
        for engine, asked in [(engine, self._ask(engine.address, "/v1/held")) for engine in able]:
            try:
                held = yield asked
            except PeerError:
                continue
            if held.uid == engine.leader:
                feeds = told is not None and engine.leader in told.feeders
                offers += offers_of(held, engine.address, feeds=feeds)
        syncing, begins = (told.syncing, told.begins) if told is not None else (False, False)
        return j.Asked(tuple(offers), said, answered, plan.term, syncing, begins)

    def _alike(self, engine: Any) -> bool:
        programs = {target.rank.rank: target.rank.program for target in engine.targets}
        return bool(engine.leader != self.agent.pod.uid and programs == self.machine.programs)

    def _ask_lease(self, offer: Offer, aim: v1.Decided) -> Future:
        request = v1.LeaseRequest(
            reader=self.agent.pod.uid, version=aim.version, programs=self.machine.programs, ours=WIRE_CAPABILITIES,
            waits=True,
        )  # fmt: skip
        return self._ask(offer.address, "/v1/leases", request)

    def _lease(self, offer: Offer, aim: v1.Decided) -> Work:
        try:
            return j.Leased((yield self._ask_lease(offer, aim)))
        except PeerError as error:
            return j.NotLeased(str(error), busy=error.reason == "Busy")

    def _pull(self, offer: Offer, lease: v1.Lease) -> Work:
        first = Future(self.world.loop)
        staying = self.agent.spawn(self._stay(offer, lease))
        reading = self.agent.spawn(self._all_ranks(lease, offer))
        staying.then(first.set)
        reading.then(first.set)
        try:
            yield first
        except Cancelled:
            yield from self._let_go(offer, staying, reading)
            raise
        over, error = reading.done, reading.error  # decision: what has been read by then counts
        yield from self._let_go(offer, staying, reading)
        if over and error is None:
            return j.Pulled()
        return j.PullBroke(str(error if over else staying.value))

    def _let_go(self, offer: Offer, *tasks: Task) -> Work:
        """Neither does anything any more, whoever is cancelled meanwhile, and the holder learns it."""
        for task in tasks:
            task.cancel()
        cancelled = yield from _outlast(tasks)
        self._leave(offer)
        if cancelled:
            raise Cancelled

    def _all_ranks(self, lease: v1.Lease, offer: Offer) -> Work:
        for held in lease.ranks:
            yield from self._rank(offer, self.agent.targets[held.rank], held, lease.decided)

    def _stay(self, offer: Offer, lease: v1.Lease) -> Work:
        """Asks for the lease again and again; the holder's reason once there is nothing to read any more."""
        while True:
            yield self.world.loop.sleep(lease.seconds / RENEWALS)
            try:
                lease = yield self._ask_lease(offer, lease.decided)
                self.world.ledger.renewals += 1
            except Refused as error:  # decision
                return str(error)
            except PeerError as error:
                self.world.loop.note(self.agent.life.name, "the lease was not prolonged", str(error))

    def _leave(self, offer: Offer) -> None:
        self._ask(offer.address, "/v1/leases/end", v1.LeaseEnd(reader=self.agent.pod.uid))

    def _rank(self, offer: Offer, target: RankTarget, held: v1.HeldRank, decided: v1.Decided) -> Work:
        arena = yield from target.begin_pull(decided.version, decided.term, fence=True)
        readers: list[Reader] = []
        try:
            yield from self._buckets(offer, (target, arena), held, readers)
        except (WeightSyncError, Cancelled):
            yield from self.ended_for_sure(readers, target, arena)
            raise
        yield from self.ended_for_sure(readers, target, arena)

    def _buckets(
        self, offer: Offer, into: tuple[RankTarget, TargetArena], held: v1.HeldRank, readers: list[Reader]
    ) -> Work:
        yield self.world.loop.sleep(self.world.start_seconds)
        if self.world.fault_chance("worker start fails"):
            raise TransferError("no worker")
        reader = Reader(self.world, into[1], self.world.join_seconds)
        readers.append(reader)
        self.agent.workers.append(reader)
        if not held.grant:
            yield from self._read(reader, into, held, held.buckets)
            return
        told = Told(offer.uid, into[1].machine.expected)
        while not told.whole:
            request = v1.MoreRequest(
                reader=self.agent.pod.uid, rank=held.rank, grant=held.grant, after=told.after,
                wait=SHARE * self.world.stall_seconds, ours=WIRE_CAPABILITIES,
            )  # fmt: skip
            answer = yield from self._more(offer, request)
            if answer.region != held.region:
                raise TransferError("its worker was replaced", reason="PeerGone")
            found = told.take(answer)
            if not set(found) <= set(held.buckets):
                raise TransferError("it verified what was not decided", reason="ArenaChanged")
            yield from self._read(reader, into, held, found)

    def _more(self, offer: Offer, request: v1.MoreRequest) -> Work:
        agent = self.agent
        way = (agent.life, agent.pod.address, offer.address)
        return (yield from self.world.network.persist(way, "/v1/leases/more", request, self.world.stall_seconds))

    def _read(
        self,
        reader: Reader,
        into: tuple[RankTarget, TargetArena],
        held: v1.HeldRank,
        buckets: Collection[BucketDigest],
    ) -> Work:
        target, arena = into
        for bucket in buckets:
            if arena.machine.verified.get(bucket.offset) == bucket:
                continue
            done = reader.read(held.region.session, number_of(bucket.offset))
            try:
                yield self.world.loop.within(done, self.world.stall_seconds)
            except TimedOut:
                raise TransferError("stalled") from None
            yield self.world.loop.sleep(DIGEST)
            [computed] = arena.digests([bucket])
            if not (yield from target.pulled(arena, computed, bucket)):
                raise TransferError("other bytes")

    def ended_for_sure(self, readers: list[Reader], target: RankTarget, arena: TargetArena) -> Work:
        """A task of its own: whoever is cancelled once more waits for it all the same."""
        ending = self.agent.spawn(self._over(readers, target, arena))
        cancelled = False
        while not ending.done:
            try:
                yield ending
            except Cancelled:
                cancelled = True
        if cancelled:
            raise Cancelled

    def _over(self, readers: list[Reader], target: RankTarget, arena: TargetArena) -> Work:
        for reader in readers:
            reader.kill()
            yield reader.dead
        yield from target.end_pull(arena)

    def _apply(self, decided: v1.Decided) -> Work:
        plan = self.plan
        coordinator = plan.coordinator if plan is not None and plan.term == decided.term else ""
        try:
            yield from self.agent.take(self.machine.own, decided, coordinator)
        except WeightSyncError as error:
            return j.NotApplied(str(error))
        self.world.ledger.joins += 1
        return j.Applied()
