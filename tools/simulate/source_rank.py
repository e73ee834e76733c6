"""One trainer rank in its agent: a thin driver of Source, as drivers/source_rank.py."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tools.simulate import invariants as i
from tools.simulate import source_invariants as own
from tools.simulate.clock import Future, Loop, TimedOut, Work
from tools.simulate.memory import SIZE, ArenaFile, digest
from tools.simulate.routes import RouteRunner
from tools.simulate.source_watch import SourceWatch
from tools.simulate.transfer import Worker
from weightsync.announcement import SourceRank as Who
from weightsync.arena import NO_GRANT, ArenaState
from weightsync.buckets import Bucket
from weightsync.errors import InputError, Refused, TransferError, WeightSyncError
from weightsync.version import version_name
from weightsync.wire import v1
from weightsync_agent.peers.client import Unreachable
from weightsync_agent.protocol import route as r
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.fence import Fence
from weightsync_agent.protocol.source import Source
from weightsync_agent.transfer.supervisor import DIED

if TYPE_CHECKING:
    from tools.simulate.source_agent import SourceAgent

DIGEST = 0.003
# Events that may be told twice; the others come once by the driver's own bookkeeping.
ECHOED = (s.Cut, s.Broken, s.Decided, s.LaneDead, s.LaneHeld, s.Tick, s.Ordered, s.Ended)
KEPT = 16
HEARD = 12  # events of a kind that are kept
POLL = 10.0  # as drivers/source_rank.py has them
AGAIN = 1.0
GRACE = 5.0

Replicas = list[tuple[str, ArenaFile, list[int]]]  # program, arena, buckets to fill


class Publish:
    """One call of publish()."""

    __slots__ = ("copied", "ended", "id", "label", "name", "nonce", "sequence", "trouble", "version", "waiting")

    def __init__(self, id_: str, nonce: str, sequence: int, label: str) -> None:
        self.id = id_
        self.nonce = nonce
        self.sequence = sequence
        self.label = label
        self.waiting: dict[str, Future] = {}  # by program: its arena
        self.version: v1.PublishAnswer | None = None
        self.copied = False
        self.ended = False  # it has its outcome
        self.trouble: tuple[str, str] | None = None


class SourceRank:
    """One trainer rank's side."""

    def __init__(self, agent: SourceAgent, who: Who) -> None:
        self.agent = agent
        self.world = agent.world
        self.loop: Loop = agent.loop
        self.who = who
        self.writer = v1.WriterId(uid=agent.pod.uid, rank=who.rank)
        seen = agent.pod.volume.terms.get(who.rank)
        self.machine = Source(f"rank {who.rank}", self.world.arenas, Fence(*seen) if seen is not None else None)
        self.name = f"{agent.life.name} rank {who.rank}"
        self.arenas: dict[s.ReplicaId, ArenaFile] = {}
        self.workers: dict[int, Worker] = {}
        self.killed: set[int] = set()
        self.publishes: dict[str, Publish] = {}
        self.orders: dict[str, list[Future]] = {}
        self.runners: dict[s.RouteId, RouteRunner] = {}
        self.queue: deque[object] = deque()
        self.busy = False
        self.refused: tuple[str, str] | None = None
        self.comparing = 0  # found arenas
        self.hurry = Future(agent.loop)  # slow comparisons are over at once
        self.asked = (0, "")  # term and coordinator of the last order or end
        self.started: set[str] = set()  # syncs that have a route
        self.ended: set[str] = set()  # syncs whose end was told, or whose order was refused
        self.ordered: dict[str, tuple[int, str]] = {}  # by sync
        self.heard: dict[type, deque[object]] = {}  # what an ambush may let come again
        self.shards: set[str] = set()  # programs of which the stages have met over their names
        self.patience = ("", 0.0)  # a Publisher's nonce, and until when its publishes wait for the first plan
        self.watch = SourceWatch(self)
        self._recover()

    def _recover(self) -> None:
        """Sealed arenas of a former life whose record is there."""
        kept = self.agent.pod.volume.replicas.setdefault(self.who.rank, {})
        found = []
        for id_, (arena, record) in sorted(kept.items(), key=lambda item: item[0]):
            if record is not None and arena.header.state is ArenaState.SEALED and arena.header.version == record[0]:
                self.arenas[id_] = arena
                found.append(s.FoundReplica(id_, *record))
        kept.clear()
        for id_, arena in self.arenas.items():
            record = next((f.version, f.turn, f.buckets) for f in found if f.replica == id_)
            kept[id_] = (arena, record)
        self.feed(s.Found(tuple(found)))

    # --- the machine ---

    def feed(self, event: object) -> None:
        """One event; its actions are done before the next."""
        if isinstance(event, ECHOED) and self.world.fault_chance("echo"):
            self.agent.spawn(self._echo(event))
        self.queue.append(event)
        if self.busy:
            return
        self.busy = True
        while self.queue:
            event = self.queue.popleft()
            if self.world.aims and isinstance(event, ECHOED):
                self.heard.setdefault(type(event), deque(maxlen=HEARD)).append(event)
            self.watch.fed(event)
            if isinstance(event, s.Ordered):
                self.asked = self.ordered[event.order.sync] = (event.order.term, event.coordinator)
                self.world.ledger.heard(self.name, event.order.sync)
            elif isinstance(event, s.Ended):
                self.asked = event.term, event.coordinator
            actions = self.world.handle(self.name, self.machine, event)
            self.watch.taken(event)
            fence = self.machine.admission.fence
            self.agent.pod.volume.terms[self.who.rank] = (fence.term, fence.coordinator)
            if isinstance(event, s.Ended):
                self.ended.add(event.sync)
            for action in actions:
                self._act(action)
            for action in actions:
                if isinstance(action, s.TakeOrder):
                    own.carried_out(self.name, action.sync, started=action.sync in self.started)
        self.busy = False
        self.watch.rests()

    def _echo(self, event: object) -> Work:
        """Told once more, later."""
        yield self.loop.sleep(self.world.rng.random() * 1.5)
        self.feed(event)

    def _act(self, action: object) -> None:  # noqa: C901, PLR0912 - one case for each action
        self.watch.acts(action)
        match action:
            case s.Fill(publish, replica):
                self._fill(publish, replica)
            case s.Abandon(publish, reason, message):
                for future in self._waiting(publish):
                    future.fail(Refused(message, reason=reason))
            case s.Seal(replica, version, turn, buckets):
                self.arenas[replica].seal(NO_GRANT, version)
                self._kept()[replica] = (self.arenas[replica], (version, turn, buckets))
            case s.Empty(replica):
                if replica in self.arenas:  # else it was never made
                    self.arenas[replica].empty()
            case s.Remove(replica):
                self.arenas.pop(replica, None)
                self._kept().pop(replica, None)
            case s.Compare():
                self.agent.spawn(self._compare(action))
            case s.TakeOrder(sync):
                for future in self.orders.pop(sync, ()):
                    future.set(v1.Accepted())
            case s.RefuseOrder(sync, reason, message):
                self.ended.add(sync)
                self._judge(reason, *self.ordered.get(sync, self.asked))
                for future in self.orders.pop(sync, ()):
                    future.fail(Refused(message, reason=reason))
            case s.RefuseEnd(_, reason, message):
                self._judge(reason, *self.asked)
                self.refused = (reason, message)
            case s.StartRoute():
                own.not_after_its_end(self.name, action.route.sync, known=action.route.sync in self.ended)
                self.world.ledger.of_sync(self.name, "a route", action.route.sync)
                self.started.add(action.route.sync)
                runner = self.runners[action.route] = RouteRunner(self, action, self.arenas[action.replica])
                if action.planned.grant in self.agent.void:
                    runner.feed(r.Cancel("GrantVoid", "its target wants no more bytes of that grant"))
            case s.FeedRoute(route, event):
                if route in self.runners:
                    self.runners[route].feed(event)
            case s.MoveRoute(route, lane):
                if route in self.runners:
                    self.runners[route].move(lane)
            case s.ReportShard():
                self.agent.spawn(self._report(action))
            case s.KillLane(lane):
                self.agent.spawn(self._kill(lane))
            case s.Wake(at):
                self.agent.spawn(self._wake(at))
            case _:
                raise TypeError(f"no such action: {action!r}")

    def _judge(self, reason: str, term: int, coordinator: str) -> None:
        """Whether it is true that a term is over, or another's."""
        if reason == "StaleTerm":
            i.not_over(self.name, term, self.world.planner.reached)
        elif reason == "TermHeld":
            i.no_second(self.name, term, coordinator, self.world.ledger.terms.get(term, coordinator))

    def _kept(self) -> dict[Any, Any]:
        return self.agent.pod.volume.replicas.setdefault(self.who.rank, {})

    def _waiting(self, publish: str) -> list[Future]:
        found = self.publishes.get(publish)
        return list(found.waiting.values()) if found is not None else []

    def _fill(self, publish: str, replica: s.ReplicaId) -> None:
        if replica not in self.arenas:
            if self.world.fault_chance("no room"):
                self.queue.append(s.NoRoom(publish, replica, "no room"))
                return
            name = f"{self.agent.pod.name}/{self.who.rank}-{replica.index}"
            layout = self.world.layout(int(replica.program[:8], 16) - 0xA0)
            self.arenas[replica] = ArenaFile(name, layout, replica.program, len(self.world.owners), self.world.pieces)
        arena = self.arenas[replica]
        arena.fill(NO_GRANT)
        self._kept()[replica] = (arena, None)
        buckets = self.world.owned(self.who.stage)
        cut = tuple(Bucket(offset=bucket * SIZE, nbytes=SIZE) for bucket in buckets)
        self.queue.append(s.Cut(publish, replica.program, cut))
        found = self.publishes.get(publish)
        if found is not None:
            found.waiting[replica.program].set((replica.program, arena, buckets))

    def _compare(self, action: s.Compare) -> Work:
        self.comparing += 1
        longest = self.world.compare_seconds
        if longest == 1.0:
            yield self.loop.sleep(DIGEST + self.world.rng.random() ** 4)
        else:
            with suppress(TimedOut):
                yield self.loop.within(self.hurry, longest)
        self.comparing -= 1
        arena = self.arenas.get(action.replica)
        equal = arena is not None and all(
            digest(action.replica.program, b.offset // SIZE, arena.content[b.offset // SIZE]) == b
            for b in action.buckets
        )
        self.feed(s.Compared(action.replica, equal))

    def _report(self, action: s.ReportShard) -> Work:
        shard = v1.ShardDigests(term=action.term, sync=action.sync, writer=self.writer, stage=self.who.stage,
                                program=action.program, buckets=action.buckets)  # fmt: skip
        yield from self.persist("/v1/shards", shard)

    def persist(self, path: str, body: Any) -> Work:
        """To the coordinator, for as long as a poll."""
        return (yield from self.agent.persist(self.agent.coordinator(), path, body, POLL))

    def _wake(self, at: float) -> Work:
        yield self.loop.sleep(max(0.0, at - self.loop.now))
        self.feed(s.Tick())

    # --- lanes ---

    def worker(self, lane: int) -> Work:
        """The lane's worker, started when it is first needed. Raises TransferError where it was killed."""
        if lane not in self.workers and lane not in self.killed:
            yield self.loop.sleep(0.6 * self.world.start_seconds)
        if lane in self.killed:
            raise TransferError(f"lane {lane} was killed", reason=DIED, quiet=True)
        if lane not in self.workers:
            worker = self.workers[lane] = self.world.wires.worker([])
            self.agent.workers.append(worker)
            worker.dead.then(lambda _: self._died(lane))
        return self.workers[lane]

    def _died(self, lane: int) -> None:
        if self.agent.life.alive:
            self.killed.add(lane)
            self.feed(s.LaneDead(lane))

    def _kill(self, lane: int) -> Work:
        self.killed.add(lane)
        yield self.loop.sleep(self.world.kill_seconds)
        worker = self.workers.get(lane)
        if worker is None:
            self.feed(s.LaneDead(lane))
        else:
            worker.kill()

    def quiet(self, grant: str, session: str) -> bool:
        """End what is written under that grant; whether no worker is left that has written to that session."""
        routes = [
            runner
            for runner in self.runners.values()
            if not runner.over and (runner.planned.grant == grant or runner.planned.region.session == session)
        ]
        for runner in routes:
            runner.feed(r.Cancel("GrantVoid", "its target wants no more bytes of that grant"))
        lanes = [lane for lane, worker in self.workers.items() if worker.alive and session in worker.met]
        for lane in lanes:
            self.feed(s.LaneHeld(lane))
        return not routes and not lanes

    # --- the Publisher's side ---

    def renew(self, who: Who) -> None:
        """Another Publisher took the rank over: what the former one left unfinished is given up."""
        if who.nonce != self.who.nonce:
            self.shards.clear()
        self.who = who
        for publish in list(self.publishes.values()):
            if publish.nonce != who.nonce and not publish.copied and publish.trouble is None:
                self.broken(publish.id, "TrainerRestarted", "the trainer ended before all was copied")

    def begin(self, nonce: str, sequence: int, label: str) -> Work:
        """publish() was called: what a former Publisher copied, and has no name yet, is given up."""
        for former in list(self.publishes.values()):
            if former.nonce != nonce and former.version is None and not former.ended:
                self.broken(former.id, "TrainerRestarted", "another Publisher published before all ranks had")
        publish = Publish(self.world.nonce(16), nonce, sequence, label)
        self.publishes[publish.id] = publish
        programs = sorted(self._wanted())
        for program in programs:
            publish.waiting[program] = Future(self.loop)
        self.feed(s.Begin(publish.id, tuple(programs)))
        replicas: Replicas = []
        for program in programs:
            replicas.append((yield publish.waiting[program]))
        self.agent.spawn(self._join(publish))
        return publish.id, replicas

    def _wanted(self) -> set[str]:
        plan = self.agent.plan
        return {
            target.rank.program
            for engine in (plan.engines if plan is not None else ())
            for target in engine.targets
            for route in target.routes
            if (route.source, route.rank) == (self.writer.uid, self.writer.rank)
        }

    def filled(self, publish: str, program: str, bucket: int) -> None:
        """A bucket is full; it is digested as it is."""
        arena = next((a for p, a, _ in self._given(publish) if p == program), None)
        if arena is not None:
            self.feed(s.Digested(publish, program, (digest(program, bucket, arena.content[bucket]),)))

    def _given(self, publish: str) -> Replicas:
        return [future.value for future in self._waiting(publish) if future.done and future.error is None]

    def copied(self, publish: str) -> None:
        """Everything is full."""
        lacking = self.machine.lacks(publish)
        if lacking:
            raise InputError(f"program {lacking} has buckets that were never filled")
        found = self.publishes.get(publish)
        if found is not None:
            found.copied = True
        self.feed(s.Copied(publish))

    def broken(self, publish: str, reason: str, message: str) -> None:
        """That version will never be whole."""
        found = self.publishes.get(publish)
        if found is None or found.trouble is not None:
            return
        found.trouble = (reason, message)
        self.feed(s.Broken(publish, reason, message))
        self.agent.spawn(self._tell_trouble(found))

    def _tell_trouble(self, publish: Publish) -> Work:
        if publish.version is None or publish.trouble is None:
            return
        body = v1.PublishTrouble(writer=self.writer, lineage=publish.version.lineage, number=publish.version.number,
                                 reason=publish.trouble[0], message=publish.trouble[1])  # fmt: skip
        yield from self.persist("/v1/trouble", body)

    def _join(self, publish: Publish) -> Work:
        version = None
        try:
            version = yield from self._outcome(publish)
        except WeightSyncError as error:
            self.loop.note(self.name, "publish without an outcome", str(error))
        publish.ended = True
        self.feed(s.Settled(publish.id, version))
        for old in list(self.publishes)[:-KEPT]:
            del self.publishes[old]

    def _outcome(self, publish: Publish) -> Work:
        yield from self._first_plan(publish.nonce)
        plan = self.agent.plan
        if plan is None or not plan.coordinator:
            return None
        pairing = self.agent.pod.volume.pairing
        found = pairing.get(self.who.rank)
        known = found if found is not None and found[0] == publish.nonce else None
        body = v1.PublishRequest(writer=self.writer, world_size=self.who.world_size, stage=self.who.stage,
                                 stages=self.who.stages, nonce=publish.nonce, sequence=publish.sequence,
                                 offset=known[1] if known else 0, label=publish.label,
                                 programs=tuple(sorted(publish.waiting)))  # fmt: skip
        self.world.watch.fills[self.writer.key, publish.nonce, publish.sequence] = frozenset(publish.waiting)
        deadline = float(plan.strategy.deadline_seconds)
        address = self.agent.coordinator()
        answer: v1.PublishAnswer = yield from self.agent.persist(address, "/v1/publishes", body, deadline + GRACE)
        pairing[self.who.rank] = (publish.nonce, max(0, answer.number - publish.sequence))
        publish.version = answer
        self.feed(s.Named(publish.id, answer.lineage, answer.number))
        self._meet(publish, answer)
        if publish.trouble is not None:
            yield from self._tell_trouble(publish)
        until = self.loop.now + 2 * (deadline + GRACE)
        name = version_name(answer.lineage, answer.number)
        while self.loop.now < until:
            try:
                outcome = yield self.agent.call(address, "/v1/outcomes", name, POLL + GRACE)
            except Unreachable:
                yield self.loop.sleep(AGAIN)
                continue
            if outcome.version is not None and not outcome.reason:
                self.feed(s.Decided(outcome.version))
            if outcome.ended:
                return None if outcome.reason else outcome.version
        return None

    def _first_plan(self, nonce: str) -> Work:
        if self.who.world_size == 1 or self.agent.first_plan.done:
            return
        if self.patience[0] != nonce:  # decision
            self.patience = nonce, self.loop.now + self.world.deadline_seconds
        with suppress(TimedOut):
            yield self.loop.within(self.agent.first_plan, max(0.0, self.patience[1] - self.loop.now))

    def _meet(self, publish: Publish, version: v1.PublishAnswer) -> None:
        """The stages tell their names of new programs; one that not all of them fill is left out."""
        for program in sorted(set(publish.waiting) - self.shards) if self.who.stages > 1 else ():
            if version.holds(program):
                self.shards.add(program)
            else:
                self.feed(s.Broken(publish.id, "ProgramNotFilled", "not every stage fills it", program=program))

    # --- the coordinator's side ---

    def order(self, order: v1.SyncOrder) -> Work:
        """What to write to whom; the answer may take as long as the version's name."""
        future = Future(self.loop)
        self.orders.setdefault(order.sync, []).append(future)
        self.feed(s.Ordered(order, order.coordinator))
        return (yield future)

    def end(self, end: v1.OrderEnd) -> v1.Accepted:
        """The sync is over."""
        self.refused = None
        self.feed(s.Ended(end.sync, end.term, end.coordinator, end.version))
        if self.refused is not None:
            raise Refused(self.refused[1], reason=self.refused[0])
        return v1.Accepted()
