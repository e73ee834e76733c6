"""Runs protocol.coordinator.Coordinator: messages in, actions out as requests, files and timers."""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import structlog

from weightsync.errors import InputError, PeerError, Refused
from weightsync.plan import Plan
from weightsync.report import Report
from weightsync.version import version_name
from weightsync.wire.v1 import (
    Accepted,
    AgentStatus,
    Capabilities,
    CommitAnswer,
    Grant,
    Held,
    NamesAnswer,
    NamesRequest,
    OrderEnd,
    OrderFor,
    PublishAnswer,
    PublishOutcome,
    PublishRequest,
    PublishTrouble,
    RelayEnd,
    RouteEnd,
    ShardDigests,
    Welcome,
)
from weightsync_agent import failpoints, lasting
from weightsync_agent.drivers.background import Background
from weightsync_agent.drivers.naming import Naming
from weightsync_agent.drivers.programs import Programs
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import Decision
from weightsync_agent.observability import feeds, logs, metrics
from weightsync_agent.peers.client import PeerClient, Unreachable
from weightsync_agent.protocol import events as e
from weightsync_agent.protocol.coordinator import COMMIT_SECONDS, Coordinator
from weightsync_agent.protocol.gather import Gather, Gathered
from weightsync_agent.protocol.held_answer import HeldAnswer
from weightsync_agent.protocol.reporting import report_of
from weightsync_agent.protocol.standing import ASK_CURRENT, Sealed
from weightsync_agent.protocol.sync import MemberState, Sync

log = structlog.get_logger(__name__)

TICK = 0.2  # seconds between two looks at deadlines, while this agent coordinates
NAMED = 8  # ranks in one message
KEPT = 64  # outcomes that can still be asked for
FENCE_SECONDS = 15.0  # for a target to replace its transfer worker before it can grant
ASK_PAUSE = 0.1  # between two handshakes with a target that cannot grant yet
RETRYABLE = frozenset({"EngineFailed", "EngineSilent", "Busy", "NoWorker"})  # a commit may succeed a moment later


def handshake_patience(reason: str, stall_seconds: float) -> float:
    """Seconds from the first handshake for which a target that refuses one is asked again.

    One that is busy applies what it has, and grants once it did: it costs others no more than one that is silent.
    """
    return {"Fencing": stall_seconds + FENCE_SECONDS, "Busy": stall_seconds}.get(reason, 0.0)


class Coordination:
    """The coordinator's part of one source agent. Every source agent has one; only the plan's acts."""

    def __init__(
        self,
        uid: str,
        ours: Capabilities,
        *,
        client: PeerClient,
        programs: Programs,
        decisions: StateFile[Decision],
        publish_report: Callable[[Report], None],
        stall_seconds: float,
        ask_current: float = ASK_CURRENT,
        commit_seconds: float = COMMIT_SECONDS,
    ) -> None:
        self.life = secrets.token_hex(4)
        self.machine = Coordinator(
            uid,
            ours,
            stall_seconds=stall_seconds,
            life=self.life,
            ask_current=ask_current,
            commit_seconds=commit_seconds,
        )
        self._client = client
        self._programs = programs
        self._decisions = decisions
        self._report = publish_report
        self._stall = stall_seconds
        self._held = HeldAnswer(self.machine)
        self._gather = Gather()
        self._naming = Naming()
        self._waiting: dict[tuple[int, str, int], asyncio.Future[PublishAnswer]] = {}
        self._outcomes: OrderedDict[str, asyncio.Future[PublishOutcome]] = OrderedDict()
        self._background = Background("coordinator")
        self._ticker: asyncio.Task[None] | None = None
        self._restore()

    def _restore(self) -> None:
        """After a restart: what was decided stays what repairs deliver, and what engines are compared with."""
        try:
            decision = self._decisions.read()
        except InputError as error:
            log.warning("the last decision cannot be read; the next publish makes one", why=str(error))
            return
        if decision is not None:
            self.machine.sealed = Sealed(decision.version, decision.label, dict(decision.programs), decision.term)

    # --- events from outside ---

    def plan(self, plan: Plan) -> None:
        """A new plan."""
        self._feed(e.PlanChanged(plan))
        if self.machine.active and self._ticker is None:
            self._ticker = lasting.begin("coordinator's clock", self._tick())

    def _coordinating(self) -> Plan:
        plan = self.machine.plan
        if plan is None or plan.coordinator != self.machine.uid:
            raise Refused(f"{self.machine.uid} does not coordinate", reason="NotCoordinator")
        return plan

    async def publishes(self, request: PublishRequest) -> PublishAnswer:
        """A rank called publish(): answers once all ranks have. Raises Refused at the deadline, naming who lacks.

        A request that comes twice gets the same answer twice.
        """
        plan = self._coordinating()
        known = self._gather.given(request)
        if known is not None:
            return self._version(known)
        mine = self._waiting.get(_life(request)) or self._join(request, plan)
        try:
            return await asyncio.wait_for(asyncio.shield(mine), plan.strategy.deadline_seconds)
        except TimeoutError:
            missing = _named(self._gather.missing(), plan)
            self._gather.drop(request)
            self._waiting.pop(_life(request), None)
            raise Refused(
                f"{missing} did not call publish() within {plan.strategy.deadline_seconds} s, or its agent has no "
                "plan yet: see the trainer's and the agent's log there",
                reason="RanksMissing",
                status=504,
            ) from None

    def _join(self, request: PublishRequest, plan: Plan) -> "asyncio.Future[PublishAnswer]":
        gathered, void = self._gather.add(request, time.monotonic(), plan.engines)
        for each in void:
            self._answer(each, _void(each))
        if request in void:
            raise _void(request)
        mine = self._waiting[_life(request)] = asyncio.get_running_loop().create_future()
        if gathered is not None:
            self._expect(version_name(gathered.lineage, gathered.number))
            for each in gathered.ranks.values():
                self._answer(each, self._version(gathered))
            self._feed(e.Published(gathered))
        return mine

    def _version(self, gathered: Gathered) -> PublishAnswer:
        programs = tuple(sorted(gathered.programs))
        return PublishAnswer(lineage=gathered.lineage, number=gathered.number, life=self.life, programs=programs)

    def _answer(self, request: PublishRequest, what: PublishAnswer | Refused) -> None:
        future = self._waiting.pop(_life(request), None)
        if future is not None and not future.done():
            future.set_exception(what) if isinstance(what, Refused) else future.set_result(what)

    def held(self, reader: str) -> Held:
        """What was decided last, for an engine that gets it from others. Raises Refused while it is not known."""
        self._coordinating()
        return self._held.held(reader, time.monotonic())

    async def names(self, request: NamesRequest) -> NamesAnswer:
        """What the caller's stage owns of the program."""
        plan = self._coordinating()
        # A rank that does not read the version's programs may tell names before all ranks have published.
        stages = self._gather.stages(request.program) or {
            route.stage
            for engine in plan.engines
            for target in engine.targets
            if target.rank.program == request.program
            for route in target.routes
        }
        program = await self._programs.get(request.program)
        owned = await self._naming.add(request, program, stages | {request.stage}, plan.strategy.deadline_seconds)
        return NamesAnswer(owned=tuple(sorted(owned)))

    async def shards(self, shard: ShardDigests) -> Accepted:
        """A shard is digested."""
        self._feed(e.ShardFilled(shard))
        return Accepted()

    async def routes(self, end: RouteEnd) -> Accepted:
        """A route ended."""
        self._feed(e.RouteEnded(end))
        return Accepted()

    async def trouble(self, trouble: PublishTrouble) -> Accepted:
        """A version will never be whole."""
        log.warning("publish broken", reason=trouble.reason, message=trouble.message)
        self._feed(e.PublishBroken(trouble.lineage, trouble.number, trouble.reason, trouble.message))
        return Accepted()

    async def outcome(self, lineage: str, number: int, wait: float) -> PublishOutcome:
        """Long poll for a publish's outcome."""
        future = self._outcomes.get(version_name(lineage, number))
        if future is None:
            raise Refused(f"no publish {lineage}.{number} is known here", reason="UnknownPublish", status=404)
        try:
            return await asyncio.wait_for(asyncio.shield(future), wait)
        except TimeoutError:
            return PublishOutcome(ended=False)

    # --- the machine ---

    def _feed(self, event: object) -> None:
        before = self.machine.sync
        actions = self.machine.handle(event, time.monotonic())
        if before is not None and before is not self.machine.sync:
            _ended(before)
        for action in actions:
            match action:
                case e.Outcome(lineage, number, outcome):
                    known = self._expect(version_name(lineage, number))
                    if not known.done():  # the same publish may come twice; its first outcome stands
                        known.set_result(outcome)
                    feeds.publish_ended(outcome)
                case e.Changed():
                    self._report(report_of(self.machine))
                case _:
                    with logs.about(action):  # a task takes what is bound where it is made along
                        self._background.spawn(self._do(action))

    def _expect(self, name: str) -> "asyncio.Future[PublishOutcome]":
        future = self._outcomes.get(name)
        if future is None:
            future = self._outcomes[name] = asyncio.get_running_loop().create_future()
            while len(self._outcomes) > KEPT:
                self._outcomes.popitem(last=False)
        return future

    async def _do(self, action: object) -> None:
        match action:
            case e.AskGrant():
                await self._ask_grant(action)
            case e.VoidGrant():
                await self._void(action)
            case e.SendOrder():
                await self._send_order(action)
            case e.Planted(sync, tree):
                log.info("relay", sync=sync, tree=dict(tree))
            case e.SendRelay():
                await self._send_relay(action)
            case e.PersistDecision(sync, term, version, label, programs):
                decision = Decision(sync=sync, version=version, label=label, term=term, programs=dict(programs))
                await failpoints.reach("coordinator", "verified")
                try:
                    with metrics.DECIDE_SECONDS.time():
                        await asyncio.to_thread(self._decisions.write, decision)
                except InputError as error:
                    self._feed(e.DecisionFailed(sync, str(error)))
                    return
                await failpoints.reach("coordinator", "decided")
                self._feed(e.DecisionPersisted(sync))
            case e.SendCommit():
                await self._send_commit(action)
            case e.EndOrder():
                await self._end_order(action)
            case e.SendWelcome():
                await self._welcome(action)
            case e.AskStatus(engine):
                await self._status(engine.key, engine.address)
            case _:
                raise TypeError(f"no such action: {action!r}")

    async def _ask_grant(self, action: e.AskGrant) -> None:
        request, target = action.request, action.target
        sync = request.sync
        await failpoints.reach("coordinator", "handshake")
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            try:
                with metrics.HANDSHAKE_SECONDS.time():
                    grant = await self._client.call(target.address, "/v1/grants", Grant, request, seconds=self._stall)
            except PeerError as error:
                # One that went on for a sync that has ended would take the arena from the next one.
                patience = handshake_patience(error.reason, self._stall) if self.machine.runs(sync) else 0.0
                if loop.time() - began < patience:
                    await asyncio.sleep(ASK_PAUSE)
                    continue
                message = f"handshake with {target.pod}, rank {request.rank}: {error}"
                self._feed(e.GrantRefused(sync, action.engine, request.rank, error.reason, message))
            else:
                self._feed(e.GrantGiven(sync, action.engine, target, grant))
            return

    async def _void(self, action: e.VoidGrant) -> None:
        try:
            await self._client.persist(
                action.target.address, "/v1/void", Accepted, action.request, seconds=self._stall
            )
        except PeerError as error:
            log.info(
                "a target did not learn that nobody writes; it will fence", pod=action.target.pod, why=str(error)
            )

    def _address(self, uid: str) -> str:
        source = self.machine.plan.source(uid) if self.machine.plan is not None else None
        if source is None:
            raise Refused(f"source {uid} left the plan", reason="SourceGone")
        return source.address

    async def _send_order(self, action: e.SendOrder) -> None:
        try:
            body = OrderFor(writer=action.writer, order=action.order)
            timeout = 2 * self._stall + action.order.stall_seconds
            await self._client.call(self._address(action.writer.uid), "/v1/orders", Accepted, body, seconds=timeout)
        except PeerError as error:
            message = f"source {action.writer.uid}, rank {action.writer.rank}: {error}"
            certain = isinstance(error, Refused)
            self._feed(e.OrderRefused(action.order.sync, action.writer, certain, error.reason, message))

    async def _send_relay(self, action: e.SendRelay) -> None:
        """Ask until it has ended, as long as the sync has not."""
        order, key = action.order, action.engine.key
        while self.machine.runs(order.sync):
            try:
                end = await self._client.persist(
                    action.engine.address, "/v1/relays", RelayEnd, order, seconds=self._stall
                )
            except PeerError as error:
                message = f"relay from {order.engine} to {action.engine.name}: {error}"
                end = RelayEnd(ended=True, reason=error.reason, message=message)
            if end.ended:
                if not end.verified:
                    log.warning("relay failed", engine=action.engine.name, parent=order.engine, why=end.message)
                self._feed(e.RelayEnded(order.sync, key, order.turn, end))
                return

    async def _end_order(self, action: e.EndOrder) -> None:
        end = OrderEnd(
            sync=action.sync,
            term=action.term,
            coordinator=self.machine.uid,
            writer=action.writer,
            version=action.version,
        )
        try:
            await self._client.persist(
                self._address(action.writer.uid), "/v1/orders/end", Accepted, end, seconds=self._stall * 2
            )
        except PeerError as error:
            log.warning("a source did not learn that its sync ended", uid=action.writer.uid, why=str(error))

    async def _send_commit(self, action: e.SendCommit) -> None:
        sync, key = action.request.sync, action.engine.key
        try:
            answer = await self._client.call(
                action.engine.address, "/v1/commits", CommitAnswer, action.request, seconds=action.timeout
            )
        except PeerError as error:
            retryable = isinstance(error, Unreachable) or error.retryable or error.reason in RETRYABLE
            message = f"commit of {action.engine.name}: {error}"
            log.warning("commit failed", engine=action.engine.name, reason=error.reason, why=str(error))
            self._feed(e.CommitFailed(sync, key, error.reason, message, retryable))
        else:
            await failpoints.reach("coordinator", "committed")
            self._feed(e.CommitDone(sync, key, answer))

    async def _welcome(self, action: e.SendWelcome) -> None:
        plan = self.machine.plan
        gate = plan.initial_gate if plan is not None else "Open"
        body = Welcome(term=action.term, coordinator=self.machine.uid, initial_gate=gate)
        try:
            await self._client.persist(action.engine.address, "/v1/welcome", Accepted, body, seconds=self._stall)
        except PeerError as error:
            log.warning("welcome unanswered", engine=action.engine.name, why=str(error))

    # --- time ---

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._feed(e.Tick())

    async def _status(self, key: str, address: str) -> None:
        try:
            status = await self._client.call(address, "/v1/status", AgentStatus, seconds=self._stall)
        except PeerError:
            self._feed(e.StatusSeen(key, None))
        else:
            self._feed(e.StatusSeen(key, status))

    async def close(self) -> None:
        """Stop all tasks."""
        if self._ticker is not None:
            await lasting.end([self._ticker])
        await self._background.close()


def _ended(sync: Sync) -> None:
    """Say and count that a sync is over."""
    current = sum(member.state is MemberState.CURRENT for member in sync.members.values())
    repair, decided = sync.repair is not None, sync.version is not None
    feeds.sync_ended(repair=repair, reason=sync.error[0], decided=decided, current=current)
    name = version_name(sync.lineage, sync.number)
    log.info("sync ended", sync=sync.id, version=name, repair=repair, decided=decided, current=current)


def _named(ranks: Sequence[int], plan: Plan) -> str:
    """Trainer ranks with the pods that the plan knows them in; of very many the first ones."""
    pods = {each.rank: source.pod for source in plan.sources for each in source.ranks}
    named = [f"rank {rank} (pod {pods[rank]})" if rank in pods else f"rank {rank}" for rank in ranks[:NAMED]]
    more = len(ranks) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _void(request: PublishRequest) -> Refused:
    """Why a publish will be in no version."""
    return Refused(
        f"rank {request.writer.rank}: publish {request.sequence} is void: other ranks, or this one, are further. "
        "A rank that restarts alone counts anew: give publish() the step's label on all ranks, or restart them all",
        reason="Superseded",
    )


def _life(request: PublishRequest) -> tuple[int, str, int]:
    """Names one call of publish() by one life of one rank."""
    return request.writer.rank, request.nonce, request.sequence
