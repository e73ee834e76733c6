"""The coordinator's part of a source agent: a thin driver of Coordinator and Gather, as drivers/coordination.py."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tools.simulate.clock import Future, TimedOut, Work
from weightsync.errors import PeerError, Refused
from weightsync.plan import Plan
from weightsync.version import version_name
from weightsync.wire import v1
from weightsync_agent.drivers.coordination import ASK_PAUSE, RETRYABLE, handshake_patience
from weightsync_agent.journal.records import Decision
from weightsync_agent.peers.client import Unreachable
from weightsync_agent.protocol import events as e
from weightsync_agent.protocol.coordinator import Coordinator
from weightsync_agent.protocol.gather import Gather, Gathered
from weightsync_agent.protocol.held_answer import HeldAnswer
from weightsync_agent.protocol.reporting import report_of
from weightsync_agent.protocol.standing import Sealed

if TYPE_CHECKING:
    from tools.simulate.source_agent import SourceAgent

# Events that may be told twice. Not GrantGiven: an answer comes once, and a late one means that nobody was ordered.
ECHOED = (
    e.GrantRefused, e.OrderRefused, e.ShardFilled, e.RouteEnded, e.PublishBroken, e.DecisionPersisted,
    e.DecisionFailed, e.CommitDone, e.CommitFailed, e.StatusSeen, e.RelayEnded,
)  # fmt: skip
RARE = (e.GrantRefused, e.OrderRefused, e.DecisionPersisted, e.DecisionFailed, e.CommitDone, e.RelayEnded)
RARE_ECHOED = 0.06
HEARD = 12  # events of a kind that are kept
WIRE_CAPABILITIES = v1.Capabilities(mooncake="0.3.13", transport="tcp")


class Coordination:
    """See the module."""

    def __init__(self, agent: SourceAgent) -> None:
        self.agent = agent
        self.world = agent.world
        self.loop = agent.loop
        self.stall = agent.world.stall_seconds
        self.life = self.world.nonce(8)
        self.machine = Coordinator(agent.pod.uid, WIRE_CAPABILITIES, stall_seconds=self.stall, life=self.life,
                                   ask_current=4.0)  # fmt: skip
        self.answer = HeldAnswer(self.machine)
        self.gather = Gather()
        self.waiting: dict[tuple[int, str, int], Future] = {}
        self.outcomes: dict[str, Future] = {}
        self.began: dict[str, float] = {}
        self.snapshot: list[str] = []
        self.heard: dict[type, deque[object]] = {}  # what an ambush may let come again
        self.ticking = False
        decision = agent.pod.volume.decision
        if decision is not None:
            self.machine.sealed = Sealed(decision.version, decision.label, dict(decision.programs), decision.term)

    # --- events from outside ---

    def plan(self, plan: Plan) -> None:
        """A new plan."""
        self.feed(e.PlanChanged(plan))
        if self.machine.active and not self.ticking:
            self.ticking = True
            self.agent.spawn(self._tick())

    def _tick(self) -> Work:
        while True:
            sync = self.machine.sync
            yield self.loop.sleep(self.world.tick_seconds if sync is not None else 2 * self.world.tick_seconds)
            self.feed(e.Tick())

    def _coordinating(self) -> Plan:
        plan = self.machine.plan
        if plan is None or plan.coordinator != self.machine.uid:
            raise Refused(f"{self.machine.uid} does not coordinate", reason="NotCoordinator")
        return plan

    def held(self, reader: str) -> v1.Held:
        """What was decided last. Raises Refused while it is not known here."""
        self._coordinating()
        return self.answer.held(reader, self.loop.now)

    def publishes(self, request: v1.PublishRequest) -> Work:
        """A rank called publish()."""
        plan = self._coordinating()
        known = self.gather.given(request)
        if known is not None:
            return self._version(known)
        mine = self.waiting.get(_life(request)) or self._join(request, plan)
        try:
            return (yield self.loop.within(mine, plan.strategy.deadline_seconds))
        except TimedOut:
            self.gather.drop(request)
            self.waiting.pop(_life(request), None)
            raise Refused("ranks did not call publish()", reason="RanksMissing", status=504) from None

    def _version(self, gathered: Gathered) -> v1.PublishAnswer:
        return v1.PublishAnswer(lineage=gathered.lineage, number=gathered.number, life=self.life,
                                programs=tuple(sorted(gathered.programs)))  # fmt: skip

    def _join(self, request: v1.PublishRequest, plan: Plan) -> Future:
        gathered, void = self.gather.add(request, self.loop.now, plan.engines)
        for each in void:
            self._answer(each, Refused(f"publish {each.sequence} is void", reason="Superseded"))
        if request in void:
            raise Refused(f"publish {request.sequence} came after the others gave it up", reason="Superseded")
        mine = self.waiting[_life(request)] = Future(self.loop)
        if gathered is not None:
            name = version_name(gathered.lineage, gathered.number)
            self.world.ledger.gathered(gathered, [self.world.step_of(r) for r in gathered.ranks.values()])
            self.world.watch.gathered(self, name, gathered)
            self._expect(name)
            for each in gathered.ranks.values():
                self._answer(each, self._version(gathered))
            self.began[name] = self.loop.now
            self.feed(e.Published(gathered))
        return mine

    def _answer(self, request: v1.PublishRequest, what: v1.PublishAnswer | Refused) -> None:
        future = self.waiting.pop(_life(request), None)
        if future is not None:
            future.fail(what) if isinstance(what, Refused) else future.set(what)

    def outcome(self, name: str, wait: float) -> Work:
        """Long poll for a publish's outcome."""
        future = self.outcomes.get(name)
        if future is None:
            raise Refused(f"no publish {name} is known here", reason="UnknownPublish", status=404)
        try:
            return (yield self.loop.within(future, wait))
        except TimedOut:
            return v1.PublishOutcome(ended=False)

    def _expect(self, name: str) -> Future:
        return self.outcomes.setdefault(name, Future(self.loop))

    # --- the machine ---

    def feed(self, event: object) -> None:
        """An event for the coordinator; what it asks for is begun."""
        machine = self.machine
        if isinstance(event, ECHOED):
            self._may_come_again(event)
        before = machine.sync
        if isinstance(event, e.CommitDone):
            self.world.watch.commit_answered(self, event)
        if before is not None:
            self.world.watch.told(before, event)
        actions = self.world.handle(self.agent.life.name, machine, event)
        if before is not None:
            self.world.watch.handled(before)
        if before is not None and machine.sync is not before:
            self.world.watch.sync_ends(before)
        for action in actions:
            match action:
                case e.Outcome(lineage, number, outcome):
                    self.world.watch.outcome(self, version_name(lineage, number), outcome)
                    self._expect(version_name(lineage, number)).set(outcome)
                case e.Changed():
                    if self.world.report:
                        report_of(machine)
                case e.SendCommit():
                    self.world.watch.commit_sent(self, action)
                    self.agent.spawn(self._send_commit(action))
                case _:
                    self.agent.spawn(self._do(action))
        if machine.sync is not before and machine.sync is not None:
            self.world.watch.sync_begins(self, machine.sync)

    def _may_come_again(self, event: object) -> None:
        often = isinstance(event, RARE) and self.world.rng.random() < RARE_ECHOED
        if often or self.world.fault_chance("echo"):
            self.agent.spawn(self._echo(event))
        if self.world.aims:
            self.heard.setdefault(type(event), deque(maxlen=HEARD)).append(event)

    def _echo(self, event: object) -> Work:
        """Told once more, later."""
        yield self.loop.sleep(self.world.rng.random() * 1.5)
        self.feed(event)

    def _do(self, action: object) -> Work:
        match action:
            case e.AskGrant():
                yield from self._ask_grant(action)
            case e.VoidGrant():
                yield from self._told(action.target.address, "/v1/void", action.request, self.stall)
            case e.SendOrder():
                yield from self._send_order(action)
            case e.Planted(sync, tree):
                self.loop.note(self.agent.life.name, "relay", (sync, dict(tree)))
            case e.SendRelay():
                yield from self._send_relay(action)
            case e.PersistDecision():
                yield from self._persist(action)
            case e.EndOrder():
                yield from self._end_order(action)
            case e.SendWelcome():
                yield from self._welcome(action)
            case e.AskStatus(engine):
                yield from self._status(engine.key, engine.address)
            case _:
                raise TypeError(f"no such action: {action!r}")

    def _told(self, address: str, path: str, body: Any, seconds: float) -> Work:
        try:
            yield from self.agent.persist(address, path, body, seconds)
        except PeerError as error:
            self.loop.note(self.agent.life.name, "untold", (path, str(error)))

    def _persist(self, action: e.PersistDecision) -> Work:
        yield self.loop.sleep(self.world.disk_seconds)
        if self.world.fault_chance("disk full"):
            self.feed(e.DecisionFailed(action.sync, "no space left"))
            return
        self.agent.pod.volume.decision = Decision(
            sync=action.sync, version=action.version, label=action.label, term=action.term,
            programs=dict(action.programs),
        )  # fmt: skip
        self.world.watch.decides(self, action)
        self.world.ledger.decided(action.version)
        self.loop.note(self.agent.life.name, "decision on disk", action.version.name)
        self.feed(e.DecisionPersisted(action.sync))

    def _ask_grant(self, action: e.AskGrant) -> Work:
        request, target = action.request, action.target
        began = self.loop.now
        while True:
            try:
                grant = yield self.agent.call(target.address, "/v1/grants", request, self.stall)
            except PeerError as error:
                runs = self.machine.runs(request.sync)
                if runs and self.loop.now - began < handshake_patience(error.reason, self.stall):  # decision
                    yield self.loop.sleep(ASK_PAUSE)
                    continue
                self.feed(e.GrantRefused(request.sync, action.engine, request.rank, error.reason, str(error)))
            else:
                self.feed(e.GrantGiven(request.sync, action.engine, target, grant))
            return

    def _address(self, uid: str) -> str:
        source = self.machine.plan.source(uid) if self.machine.plan is not None else None
        if source is None:
            raise Refused(f"source {uid} left the plan", reason="SourceGone")
        return source.address

    def _send_order(self, action: e.SendOrder) -> Work:
        try:
            body = v1.OrderFor(writer=action.writer, order=action.order)
            timeout = 2 * self.stall + action.order.stall_seconds
            yield self.agent.call(self._address(action.writer.uid), "/v1/orders", body, timeout)
        except PeerError as error:
            certain = isinstance(error, Refused)  # decision
            self.feed(e.OrderRefused(action.order.sync, action.writer, certain, error.reason, str(error)))

    def _send_relay(self, action: e.SendRelay) -> Work:
        order, key = action.order, action.engine.key
        while self.machine.runs(order.sync):
            try:
                end = yield from self.agent.persist(action.engine.address, "/v1/relays", order, self.stall)
            except PeerError as error:
                end = v1.RelayEnd(ended=True, reason=error.reason, message=str(error))
            if end.ended:
                self.feed(e.RelayEnded(order.sync, key, order.turn, end))
                return

    def _end_order(self, action: e.EndOrder) -> Work:
        end = v1.OrderEnd(sync=action.sync, term=action.term, coordinator=self.machine.uid, writer=action.writer,
                          version=action.version)  # fmt: skip
        try:
            yield from self.agent.persist(self._address(action.writer.uid), "/v1/orders/end", end, self.stall * 2)
        except PeerError as error:
            self.loop.note(self.agent.life.name, "untold", str(error))

    def _send_commit(self, action: e.SendCommit) -> Work:
        sync, key = action.request.sync, action.engine.key
        try:
            answer = yield self.agent.call(action.engine.address, "/v1/commits", action.request, action.timeout)
        except PeerError as error:
            retryable = isinstance(error, Unreachable) or error.retryable or error.reason in RETRYABLE  # decision
            self.feed(e.CommitFailed(sync, key, error.reason, str(error), retryable))
        else:
            self.world.ledger.current(action.engine.name, answer.incarnation, action.request.version.name)
            self.feed(e.CommitDone(sync, key, answer))

    def _welcome(self, action: e.SendWelcome) -> Work:
        plan = self.machine.plan
        gate = plan.initial_gate if plan is not None else "Open"
        body = v1.Welcome(term=action.term, coordinator=self.machine.uid, initial_gate=gate)
        yield from self._told(action.engine.address, "/v1/welcome", body, self.stall)

    def _status(self, key: str, address: str) -> Work:
        try:
            status = yield self.agent.call(address, "/v1/status", None, self.stall)
        except PeerError:
            status = None
        self.feed(e.StatusSeen(key, status))


def _life(request: v1.PublishRequest) -> tuple[int, str, int]:
    return request.writer.rank, request.nonce, request.sequence
