"""The coordinator of one trainer: at most one sync at a time. Rules:

- a sync pins a snapshot of the plan's engines; removals drop out, additions join the next one, and so does an engine
  that a rank did not know yet when it published;
- handshake with every target first; then orders to the sources; a member whose handshake, route or deadline
  fails is taken out and repaired later: nobody waits for it (but, under Barrier, until its deadline);
- with a fanout some members are written to, and the others read from members (relaying.py): a parent that is lost is
  replaced by another one, and costs nobody but those below it a moment;
- the decision is on disk before the first commit; from then on nobody aborts the version;
- Barrier decides when every member is staged or out. Rolling, and a repair, decide as soon as the sources' digests
  say what the version is: each engine commits when it is staged, and no more than maxUnavailable at a time;
- a coordinator that begins a term asks every engine what it serves: what one of them was told to commit is decided,
  whoever decided it, and is finished by repairs; what nobody was told is run again by the next publish;
- a repair (an engine that joined, or fell behind) is a sync of the last decided version; a publish supersedes
  it as long as it is not decided, and takes its engines in;
- an engine that failed is left to repairs until it answers again and a while has passed, the longer the more often it
  failed; then a publish takes it in, since no repair is begun where publishes follow each other at once;
- an engine that gets the version by itself, from another engine, is repaired only once it says that nobody has it.
"""

from collections import deque
from enum import Enum

from weightsync.errors import CoverageError
from weightsync.plan import Plan, Target
from weightsync.version import version_name
from weightsync.wire.v1 import (
    Capabilities,
    Decided,
    EngineOutcome,
    GrantRequest,
    PublishOutcome,
    VoidRequest,
    WriterId,
)
from weightsync_agent.protocol import events as e
from weightsync_agent.protocol import relaying
from weightsync_agent.protocol.fence import sync_id
from weightsync_agent.protocol.gather import Gathered
from weightsync_agent.protocol.repair import backoff
from weightsync_agent.protocol.standing import ASK_CURRENT, Known, LastSync, Sealed, Standing, age, own_fault
from weightsync_agent.protocol.sync import Member, MemberState, Sync
from weightsync_agent.protocol.table import Machine, Row

COMMIT_GRACE = 2.0  # after that, for the last answer to arrive
COMMIT_SECONDS = 15.0  # for all tries of one engine's commit, unless told: it may hold the next version no longer
HANDSHAKE_SECONDS = 1.0  # Rolling: how long those that granted wait for the others, once they are half of all


class CoordinatorState(Enum):
    """Where the one sync stands."""

    IDLE = "no sync"
    GRANTING = "targets are asked for grants"
    STAGING = "sources write, targets verify"
    DECIDING = "the decision is being written to disk"
    COMMITTING = "engines apply; the version can no longer be aborted"


class Coordinator(Machine[CoordinatorState]):
    """See the module's rules. life: a nonce of this process, so that no sync's id is ever used twice."""

    def __init__(
        self,
        uid: str,
        ours: Capabilities,
        *,
        stall_seconds: float,
        life: str = "0",
        ask_current: float = ASK_CURRENT,
        commit_seconds: float = COMMIT_SECONDS,
    ) -> None:
        super().__init__(CoordinatorState.IDLE)
        self.uid = uid
        self.life = life
        self.ours = ours
        self.stall_seconds = stall_seconds
        self.ask_current = ask_current
        self.commit_seconds = commit_seconds
        self.plan: Plan | None = None
        self.term = 0
        self.engines: dict[str, Known] = {}
        self.sync: Sync | None = None
        self.queued: deque[Gathered] = deque()
        self.broken: dict[str, tuple[str, str]] = {}
        self.sealed: Sealed | None = None
        self.last: LastSync | None = None
        self.count = 0
        self.published = 0
        self.ask_until = 0.0  # a new term asks the engines what they serve before it repairs or welcomes
        self.granting_until: float | None = None
        self.trees: dict[relaying.Group, relaying.Tree] = {}  # of the last publish: few edges change in the next
        self.suspects: set[str] = set()  # keys of engines that failed last time: they feed nobody
        self.error: tuple[str, str] = ("", "")

    @property
    def active(self) -> bool:
        """The plan names us, and nobody suspended it."""
        return self.plan is not None and self.plan.coordinator == self.uid and not self.plan.suspend

    def knows(self, now: float) -> bool:
        """What was decided before this term is known, as far as anybody can say it."""
        return now >= self.ask_until or all(known.asked for known in self.engines.values())

    # --- the plan ---

    def _plan(self, event: e.PlanChanged, now: float) -> list[object]:
        self.plan = event.plan
        if event.plan.coordinator == self.uid and event.plan.term > self.term:
            self.term = event.plan.term  # a successor's term is not ours to use
            self.ask_until = now + self.stall_seconds
            for known in self.engines.values():
                known.asked, known.ask_at = False, now
        wanted = {engine.key: engine for engine in event.plan.engines}
        for key in [key for key in self.engines if key not in wanted]:
            del self.engines[key]
        for key, engine in wanted.items():
            known = self.engines.setdefault(key, Known(engine))
            known.engine = engine
        actions: list[object] = [e.Changed()]
        if self.sync is not None and event.plan.coordinator != self.uid and self.state in _UNDECIDED:
            return actions + self._abort("NotCoordinator", "another coordinator took over", now)
        if self.sync is not None:
            for key, member in self.sync.members.items():
                if key not in wanted and member.state is not MemberState.CURRENT:
                    self.sync.out(member, "Gone", "EngineGone", f"{member.engine.name} left the plan during the sync")
            actions += self._advance(now)
        return actions + self._next(now)

    # --- beginning ---

    def _publish(self, event: e.Published, now: float) -> list[object]:
        if self.state is CoordinatorState.IDLE:
            return self._begin(event.gathered, now)
        actions: list[object] = []
        if self.plan is None or self.plan.strategy.type != "Barrier":
            actions = self._drop_queued("Superseded", "a newer version was published")
        self.queued.append(event.gathered)
        if self.sync is not None and self.sync.repair and self.state in _UNDECIDED:
            for key, member in self.sync.members.items():
                if member.grants and key in self.engines:
                    self.engines[key].failures = 0  # it answers again: it becomes a member of the newer sync
                self.sync.out(member, "Superseded", "Superseded", "a newer version was published")
            actions += self._finish(now)
        return actions

    def _drop_queued(self, reason: str, message: str, name: str = "") -> list[object]:
        """End the versions that wait, or the one of that name."""
        drop = [g for g in self.queued if name in ("", version_name(g.lineage, g.number))]
        self.queued = deque(g for g in self.queued if g not in drop)
        return [self._ended(gathered, reason, message) for gathered in drop]

    def _ended(self, gathered: Gathered, reason: str, message: str) -> e.Outcome:
        outcome = PublishOutcome(ended=True, reason=reason, message=message)
        return e.Outcome(gathered.lineage, gathered.number, outcome)

    def _begin(self, gathered: Gathered, now: float) -> list[object]:
        name = version_name(gathered.lineage, gathered.number)
        if name in self.broken:
            return [self._ended(gathered, *self.broken[name]), *self._next(now)]
        if not self.active or self.plan is None:
            reason = "Suspended" if self.plan is not None and self.plan.suspend else "NoPlan"
            return [
                self._ended(gathered, reason, "no active plan names this trainer's coordinator"),
                *self._next(now),
            ]
        if not self.plan.engines:
            return [self._ended(gathered, "NoTargets", "the plan has no engine"), *self._next(now)]
        served = self._served(gathered)
        if not served:
            message = "no engine of the plan was known to every trainer rank when it published"
            return [self._ended(gathered, "NoTargets", message), *self._next(now)]
        self.published += 1
        excluded = self._left_to_repairs(served, now)
        actions = self._start(gathered, self.plan, served, now)
        if self.sync is not None:
            for known in excluded:
                message = f"{known.engine.name} is behind and being repaired: {known.message}"
                self.sync.out(self.sync.members[known.engine.key], "Behind", known.reason, message)
        asked = [a for a in actions if not isinstance(a, e.AskGrant) or self.engines[a.engine] not in excluded]
        return asked + self._advance(now)

    def _served(self, gathered: Gathered) -> list[Known]:
        """The engines that the version is for; of the others it is said why they wait."""
        served = []
        for known in self.engines.values():
            if gathered.serves(known.engine):
                served.append(known)
                continue
            known.reason = "ProgramNotFilled"
            known.message = (
                f"a trainer rank did not know yet that it feeds {known.engine.name} when it published "
                f"{gathered.number}; a repair or the next publish serves it"
            )
        return served

    def _left_to_repairs(self, engines: list[Known], now: float) -> list[Known]:
        """Engines that failed: they may not hold the others. Only those that a repair can help, and never all."""
        failing = [known for known in engines if known.holds_others(now) and self._repairable(known)]
        return failing if len(failing) < len(engines) else []

    def _repairable(self, known: Known) -> bool:
        return self.sealed is not None and known.fits(self.sealed.roots)

    def _start(
        self, gathered: Gathered, plan: Plan, engines: list[Known], now: float, repair: Sealed | None = None
    ) -> list[object]:
        self.count += 1
        self.sync = Sync(
            id=sync_id(self.uid, self.life, self.count),
            term=self.term,
            lineage=gathered.lineage,
            number=gathered.number,
            label=gathered.label,
            plan=plan,
            started=gathered.began,
            deadline=now + plan.strategy.deadline_seconds,
            members={known.engine.key: Member(known.engine) for known in engines},
            repair=repair.version if repair else None,
            roots=dict(repair.roots) if repair else {},
        )
        self.state, self.granting_until = CoordinatorState.GRANTING, None
        return [
            e.AskGrant(
                engine=member.engine.key,
                target=target,
                request=GrantRequest(
                    term=self.sync.term,
                    coordinator=self.uid,
                    sync=self.sync.id,
                    target=target.uid,
                    rank=target.rank.rank,
                    layout=target.rank.layout,
                    program=target.rank.program,
                    lineage=gathered.lineage,
                    number=gathered.number,
                    writers=tuple(WriterId(uid=route.source, rank=route.rank) for route in target.routes),
                    ours=self.ours,
                    pause_mode=plan.strategy.pause_mode,
                    sources={source.uid: source.address for source in plan.sources},
                    protocol=plan.transfer.protocol,
                    devices=plan.devices(target),
                    rdma=plan.transfer.rdma,
                ),
            )
            for member in self.sync.members.values()
            for target in member.engine.targets
        ] + [e.Changed()]

    # --- handshakes ---

    def _granted(self, event: e.GrantGiven, now: float) -> list[object]:
        if self.sync is not None:
            self.sync.members[event.engine].grants[event.target.rank.rank] = event.grant
        return self._advance(now)

    def _too_late(self, event: e.GrantGiven, now: float) -> list[object]:
        return [self._void(event.target, event.grant.grant)]

    def _void(self, target: Target, grant: str, writer: str | None = None) -> e.VoidGrant:
        """No order for this grant was sent, or its writer refused it: nobody will write."""
        writers = (WriterId(uid=route.source, rank=route.rank) for route in target.routes)
        named = tuple(w for w in writers if writer is None or w.key == writer)
        request = VoidRequest(term=self.term, coordinator=self.uid, rank=target.rank.rank, grant=grant, writers=named)
        return e.VoidGrant(target, request)

    def _not_granted(self, event: e.GrantRefused, now: float) -> list[object]:
        if self.sync is not None:
            self.sync.out(self.sync.members[event.engine], "Failed", event.reason, event.message)
        return self._advance(now)

    # --- staging ---

    def _shard(self, event: e.ShardFilled, now: float) -> list[object]:
        if self.sync is not None:
            problem = self.sync.add_shard(event.shard)
            if problem:
                return self._abort("RanksDiffer", problem, now)
        return self._advance(now)

    def _route(self, event: e.RouteEnded, now: float) -> list[object]:
        end, sync = event.end, self.sync
        key = (end.target, end.rank, end.writer.key)
        for member in sync.members.values() if sync else ():
            given = member.grants.get(end.rank)
            if key not in member.pending or given is None or given.grant != end.grant:
                continue
            member.pending.discard(key)
            if end.verified:
                member.verified(key, end)
                if not member.pending and member.state is MemberState.STAGING:
                    member.state, member.staged_at = MemberState.STAGED, now
            elif sync is not None:
                sync.out(member, "Failed", end.reason or "TransferFailed", end.message)
        return self._advance(now)

    def _relayed(self, event: e.RelayEnded, now: float) -> list[object]:
        sync, end = self.sync, event.end
        if sync is None:
            return []
        member = sync.members[event.engine]
        if end.verified:
            relaying.verified(sync, member, end)
            member.state, member.staged_at = MemberState.STAGED, now
            return self._advance(now)
        if end.lost:
            sync.failed_others.add(member.parent or "")
            return self._turn(sync, member, now) + self._advance(now)
        return self._unfed(sync, member, end.reason or "TransferFailed", end.message) + self._advance(now)

    def _turn(self, sync: Sync, member: Member, now: float) -> list[object]:
        """Another engine feeds it; where there is none, a repair will."""
        before = sync.members[member.parent or ""].engine.name
        if relaying.turn(sync, member):
            return [self._send_relay(sync, member, now)]
        message = (
            f"{member.engine.name}: {before} passes nothing on any more, and no other engine can: it is repaired"
        )
        return self._unfed(sync, member, relaying.LOST, message)

    def _unfed(self, sync: Sync, member: Member, reason: str, message: str) -> list[object]:
        """Take out one that reads from others: nobody was ordered to write to it."""
        sync.out(member, "Failed", reason, message)
        return [self._void(t, member.grants[t.rank.rank].grant) for t in member.engine.targets]

    def _send_relay(self, sync: Sync, member: Member, now: float) -> e.SendRelay:
        return e.SendRelay(member.engine, relaying.order(sync, member, self.uid, self.stall_seconds, now))

    def _no_order(self, event: e.OrderRefused, now: float) -> list[object]:
        voided: list[object] = []
        for member in self.sync.live(MemberState.STAGING) if self.sync else ():
            mine = [t for t in member.engine.targets if (t.uid, t.rank.rank, event.writer.key) in member.pending]
            if mine and self.sync is not None:
                member.blameless = True
                self.sync.out(member, "Failed", event.reason, event.message)
                if event.certain:
                    voided += [self._void(t, member.grants[t.rank.rank].grant, event.writer.key) for t in mine]
        return voided + self._advance(now)

    def _broken(self, event: e.PublishBroken, now: float) -> list[object]:
        name = version_name(event.lineage, event.number)
        if dropped := self._drop_queued(event.reason, event.message, name):
            return dropped
        if self.sync is not None and version_name(self.sync.lineage, self.sync.number) == name:
            return self._abort(event.reason, event.message, now)
        self.broken = {name: (event.reason, event.message)}
        return []

    def _broken_later(self, event: e.PublishBroken, now: float) -> list[object]:
        """What is decided is finished; only a version that waits can still be dropped."""
        return self._drop_queued(event.reason, event.message, version_name(event.lineage, event.number))

    def _abort(self, reason: str, message: str, now: float) -> list[object]:
        self.error = (reason, message)
        if self.sync is not None:
            self.sync.error = self.error
            for member in self.sync.live():
                self.sync.out(member, "Failed", reason, message)
        return self._finish(now)

    # --- going on ---

    def _advance(self, now: float) -> list[object]:
        sync = self.sync
        if sync is None:
            return []
        for member in sync.live(MemberState.GRANTING):
            if len(member.grants) == len(member.engine.targets):
                member.state, member.pending = MemberState.STAGING, member.routes()
        turned: list[object] = []
        while orphans := relaying.orphans(sync):  # one that finds no other parent is taken out, and may have children
            turned += [action for member in orphans for action in self._turn(sync, member, now)]
        return turned + self._go_on(sync, now)

    def _go_on(self, sync: Sync, now: float) -> list[object]:
        if self.state in _UNDECIDED and not sync.live():
            return self._finish(now)
        if self.state is CoordinatorState.GRANTING:
            return self._order(sync, now)
        if self.state is CoordinatorState.STAGING and (sync.each or not sync.live(MemberState.STAGING)):
            return self._decide(now)
        if self.state is CoordinatorState.COMMITTING:
            return self._commit_staged(sync, now)
        return []

    def _order(self, sync: Sync, now: float) -> list[object]:
        """Every handshake is through: tell the sources what to write."""
        waiting = sync.live(MemberState.GRANTING)
        if sync.rolling and waiting and self.granting_until is None:
            granted = sync.live(MemberState.STAGING)
            if len(granted) >= len(waiting):
                self.granting_until = now + HANDSHAKE_SECONDS
        if waiting:
            return []
        self.state = CoordinatorState.STAGING
        relaying.plant(sync, self.suspects, self.trees)
        orders = sync.orders(sync.term, self.uid, self.stall_seconds)
        ordered: list[object] = [e.SendOrder(writer, order) for writer, order in orders.values()]
        if not sync.trees:
            return ordered
        relays = [self._send_relay(sync, member, now) for member in relaying.waiting(sync)]
        return [e.Planted(sync.id, relaying.whole(sync)), *ordered, *relays]

    def _decide(self, now: float) -> list[object]:
        sync = self.sync
        if sync is None:
            return []
        try:
            decided = sync.decide()
        except CoverageError as error:
            return self._abort(error.reason, str(error), now)
        if decided is None:
            return []
        sync.version, sync.roots = decided
        self.state = CoordinatorState.DECIDING
        return [e.PersistDecision(sync.id, sync.term, sync.version, sync.label, sync.roots)]

    def _commit(self, event: e.DecisionPersisted, now: float) -> list[object]:
        sync = self.sync
        if sync is None or sync.version is None:
            return []
        self.sealed = Sealed(sync.version, sync.label, dict(sync.roots), sync.term)
        self.error = ("", "")
        self.state = CoordinatorState.COMMITTING
        return self._commit_staged(sync, now)

    def _commit_staged(self, sync: Sync, now: float) -> list[object]:
        """Commit what is staged, as many at a time as may be away; the end where nobody is left."""
        actions: list[object] = []
        for member in sync.live(MemberState.STAGED)[: sync.room(now, self.stall_seconds)]:
            member.state, member.committing_at = MemberState.COMMITTING, now
            actions.append(self._send_commit(sync, member, now))
        if not sync.live(MemberState.STAGING, MemberState.STAGED, MemberState.COMMITTING):
            return self._finish(now)
        return actions

    def _undecided(self, event: e.DecisionFailed, now: float) -> list[object]:
        if self.sync is not None:
            self.sync.version = None
        return self._abort("DecisionNotWritten", event.message, now)

    def _send_commit(self, sync: Sync, member: Member, now: float) -> e.SendCommit:
        member.commit_tries += 1
        member.retry_at = None
        timeout = max(1.0, member.committing_at + self.commit_seconds - now)
        return e.SendCommit(member.engine, sync.commit_request(member, sync.term, self.uid), timeout)

    def _committed(self, event: e.CommitDone, now: float) -> list[object]:
        sync = self.sync
        if sync is not None and event.answer.incarnation != sync.members[event.engine].engine.incarnation:
            member = sync.members[event.engine]
            sync.out(member, "Gone", "EngineRestarted", f"{member.engine.name} began another life during the sync")
        elif sync is not None:
            member = sync.members[event.engine]
            member.state = MemberState.CURRENT
            member.outcome = EngineOutcome(
                engine=member.engine.name,
                outcome="Current",
                mode=member.engine.mode,
                pause_seconds=event.answer.pause_seconds,
                apply_seconds=event.answer.apply_seconds,
                staged_seconds=max(0.0, member.staged_at - sync.started),
                routes=member.taken(),
            )
            if event.engine in self.engines:
                self.engines[event.engine].became_current(event.answer.version)
        return [*self._advance(now), e.Changed()]

    def _not_committed(self, event: e.CommitFailed, now: float) -> list[object]:
        sync = self.sync
        if sync is None:
            return []
        member = sync.members[event.engine]
        if event.retryable and now < member.committing_at + self.commit_seconds:
            member.retry_at = now + backoff(member.commit_tries)
            return []
        sync.out(member, "Failed", event.reason, event.message)
        return self._advance(now)

    # --- the end of a sync ---

    def _finish(self, now: float) -> list[object]:
        sync, self.sync = self.sync, None
        ordered = self.state is not CoordinatorState.GRANTING
        self.state = CoordinatorState.IDLE
        if sync is None:
            return self._next(now)
        trainers_fault = sync.repair is None and bool(sync.error[0])
        for key, member in sync.members.items() if not trainers_fault else ():
            told, known = member.outcome, self.engines.get(key)
            if known is not None and told is not None and told.outcome in ("Failed", "Superseded", "Behind"):
                known.fell_behind(told, now, member.blameless)
        self._remember_relay(sync)
        decided = self.sealed.version if sync.version is not None and self.sealed is not None else None
        voided: list[object] = [
            self._void(target, member.grants[target.rank.rank].grant)
            for member in sync.members.values()
            for target in member.engine.targets
            if not ordered and target.rank.rank in member.grants
        ]
        actions: list[object] = voided + [e.EndOrder(w, sync.id, sync.term, decided) for w in sync.writers.values()]
        nbytes = sum(m.nbytes for m in sync.members.values())
        if sync.repair is None:
            if sync.version is not None:
                self.last = LastSync.of(sync, sync.version, nbytes, now)
                age(self.engines, sync)
            outcome = PublishOutcome(
                ended=True,
                version=sync.version,
                engines=sync.outcomes(),
                seconds=now - sync.started,
                nbytes=nbytes,
                reason=sync.error[0],
                message=sync.error[1],
            )
            actions.append(e.Outcome(sync.lineage, sync.number, outcome))
        return [*actions, e.Changed(), *self._next(now)]

    def _remember_relay(self, sync: Sync) -> None:
        """For the next tree."""
        for key, member in sync.members.items():
            failed = own_fault(member.outcome, member.blameless)
            if key in sync.failed_others or (failed and not sync.error[0]):
                self.suspects.add(key)
            elif member.state is MemberState.CURRENT:
                self.suspects.discard(key)
        self.suspects &= self.engines.keys()
        if sync.repair is None and sync.trees:
            self.trees = dict(sync.trees)

    def _next(self, now: float) -> list[object]:
        """What an idle coordinator does: the queued publish, else questions and repairs that are due, or welcomes."""
        if self.state is not CoordinatorState.IDLE:
            return []
        if self.queued:
            return self._begin(self.queued.popleft(), now)
        if not self.active:
            return []
        asks = self._ask(now)
        if not self.knows(now):
            return asks
        if self.sealed is None:
            return asks + self._welcome(now)
        return asks + self._repair(self.sealed, now)

    def _ask(self, now: float) -> list[object]:
        """What do the engines serve? During a sync only those that failed, and are out of it: are they well?"""
        asked = list(self.engines.values())
        if self.sync is not None:
            live = {member.engine.key for member in self.sync.live()}
            asked = [known for known in asked if known.failures and known.engine.key not in live]
        return [e.AskStatus(known.engine) for known in asked if known.ask(now, self.ask_current)]

    def _repair(self, sealed: Sealed, now: float) -> list[object]:
        """Bring the last version to engines that lack it."""
        policy = self.plan.join_policy if self.plan is not None else "Peer"
        due = [known for known in self.engines.values() if known.to_repair(now, policy)]
        able = [known for known in due if self._repairable(known)]
        for known in due:
            if known not in able:
                known.reason = "ProgramNotFilled"
                known.message = (
                    f"the last version was not made for {known.engine.name}'s layout; the next one will be"
                )
        if not able or self.plan is None:
            return []
        # One that failed before is repaired alone, so that it holds no joiner.
        together = [known for known in able if not known.failures] or [min(able, key=lambda known: known.retry_at)]
        gathered = Gathered(sealed.version.lineage, sealed.version.number, sealed.label, {}, now)
        return self._start(gathered, self.plan, together, now, repair=sealed)

    def _welcome(self, now: float) -> list[object]:
        return [e.SendWelcome(known.engine, self.term) for known in self.engines.values() if known.welcome(now)]

    # --- time and status ---

    def _tick(self, event: e.Tick, now: float) -> list[object]:
        sync = self.sync
        if sync is None:
            return self._next(now)
        return self._ask(now) + self._late(sync, now)

    def _late(self, sync: Sync, now: float) -> list[object]:
        """What the running sync waited for long enough, and commits that are sent again."""
        if self.state is CoordinatorState.GRANTING and self.granting_until is not None and now >= self.granting_until:
            for member in sync.live(MemberState.GRANTING):
                message = f"{member.engine.name}: its handshake took longer than that of the others"
                sync.out(member, "Failed", "HandshakeSlow", message)
            return self._advance(now)
        if now >= sync.deadline and self._overdue(sync, now):
            actions = self._advance(now)
            if self.state is CoordinatorState.STAGING and self.sync is sync and not sync.live(MemberState.STAGING):
                # Every live member is staged, and still it cannot be said what the version is.
                return self._abort("ShardsMissing", "a source did not report its shard by the deadline", now)
            return actions
        if self.state is not CoordinatorState.COMMITTING:
            return []
        again: list[object] = []
        for member in sync.live(MemberState.COMMITTING):
            if now > member.committing_at + self.commit_seconds + COMMIT_GRACE:
                sync.out(member, "Failed", "CommitUnanswered", f"{member.engine.name} did not answer its commit")
            elif member.retry_at is not None and member.retry_at <= now:
                again.append(self._send_commit(sync, member, now))
        return again + self._advance(now)

    def _overdue(self, sync: Sync, now: float) -> bool:
        """Take out the members that are not staged at the deadline; whether the sync is to go on from here."""
        if self.state is CoordinatorState.DECIDING:
            return False
        unfinished = sync.live(MemberState.GRANTING, MemberState.STAGING)
        for member in unfinished:
            lack = f"{len(member.pending)} routes" if member.pending else "its handshake"
            message = f"{member.engine.name}: {lack} unfinished after {now - sync.started:.1f} s"
            sync.out(member, "Failed", "DeadlineExceeded", message)
        return bool(unfinished) or self.state in _UNDECIDED

    def _status(self, event: e.StatusSeen, now: float) -> list[object]:
        known = self.engines.get(event.engine)
        if known is None:
            return []
        if event.status is None:
            known.silent()
            return []
        status = event.status
        if status.incarnation != known.engine.incarnation:
            return []
        known.said(status)
        self._adopt(status.decided)
        sealed = self.sealed
        if sealed is not None and status.version == sealed.version.name and status.journal == "Current":
            known.became_current(status.version)
        elif known.standing is Standing.CURRENT:
            known.changed(status.version, now)
        return [e.Changed(), *self._next(now)]

    def _adopt(self, decided: Decided | None) -> None:
        """An engine was told to commit this version: it is decided, whoever decided it."""
        if decided is None or self.state is not CoordinatorState.IDLE:
            return
        found = Sealed(decided.version, decided.label, dict(decided.programs), decided.term)
        if self.sealed is None or found.order > self.sealed.order:
            self.sealed = found
            for known in self.engines.values():
                if known.standing is Standing.CURRENT and known.version != found.version.name:
                    known.standing = Standing.BEHIND

    def runs(self, sync: str) -> bool:
        """That sync is the one that runs."""
        return self.sync is not None and self.sync.id == sync

    def member(
        self, event: "e.GrantGiven | e.GrantRefused | e.RelayEnded | e.CommitDone | e.CommitFailed"
    ) -> Member | None:
        """The member of the running sync that the event is about; None for a late one."""
        if self.sync is None or not self.runs(event.sync):
            return None
        found = self.sync.members.get(event.engine)
        return found if found is not None and found.live else None

    def reads(self, event: e.RelayEnded) -> bool:
        """It is about the engine that its member reads from now."""
        found = self.member(event)
        return found is not None and found.state is MemberState.STAGING and found.turn == event.turn


_S = CoordinatorState
_UNDECIDED = (_S.GRANTING, _S.STAGING)
_ORDERED = (_S.STAGING, _S.DECIDING, _S.COMMITTING)  # routes are open, or may be
_ANY = tuple(_S)


def _everywhere(event: type, effect: object, name: str) -> dict[tuple[object, type], tuple[Row, ...]]:
    return {(state, event): (Row(None, effect, name=name, may=_ANY),) for state in _S}  # type: ignore[arg-type]


def _late(event: type, *states: CoordinatorState) -> dict[tuple[object, type], tuple[Row, ...]]:
    return {(state, event): (Row(state, name="late: of a member or a sync that has ended"),) for state in states}


Coordinator.table = {
    **_everywhere(e.PlanChanged, Coordinator._plan, "take the plan; drop members that left it"),
    **_everywhere(e.Published, Coordinator._publish, "begin, or queue and supersede an undecided repair"),
    **_everywhere(e.Tick, Coordinator._tick, "deadlines, repeated commits, repairs"),
    **_everywhere(e.StatusSeen, Coordinator._status, "an engine that changed is repaired"),
    **{
        (state, e.PublishBroken): (Row(None, Coordinator._broken, name="that version is never whole", may=_ANY),)
        for state in (_S.IDLE, _S.GRANTING, _S.STAGING)
    },
    **{
        (state, e.PublishBroken): (Row(state, Coordinator._broken_later, name="a version that waits is never whole"),)
        for state in (_S.DECIDING, _S.COMMITTING)
    },
    **{
        (state, e.GrantGiven): (Row(state, Coordinator._too_late, name="late: nobody was ordered to write"),)
        for state in (_S.IDLE, _S.STAGING, _S.DECIDING, _S.COMMITTING)
    },
    **_late(e.GrantRefused, _S.IDLE, _S.STAGING, _S.DECIDING, _S.COMMITTING),
    (_S.GRANTING, e.GrantGiven): (
        Row(None, Coordinator._granted, lambda m, ev: m.member(ev) is not None, "granted", (_S.STAGING, _S.IDLE)),
        Row(_S.GRANTING, Coordinator._too_late, name="late: nobody was ordered to write"),
    ),
    (_S.GRANTING, e.GrantRefused): (
        Row(None, Coordinator._not_granted, lambda m, ev: m.member(ev) is not None, "take it out", _ANY),
        Row(_S.GRANTING, name="late: of a member or a sync that has ended"),
    ),
    **_late(e.OrderRefused, _S.IDLE, _S.GRANTING),
    **{
        (state, e.OrderRefused): (
            Row(None, Coordinator._no_order, lambda m, ev: m.runs(ev.sync), "take its engines out", _ANY),
            Row(state, name="late: of a member or a sync that has ended"),
        )
        for state in _ORDERED
    },
    **_late(e.ShardFilled, _S.IDLE, _S.GRANTING, _S.DECIDING, _S.COMMITTING),
    (_S.STAGING, e.ShardFilled): (
        Row(None, Coordinator._shard, lambda m, ev: m.runs(ev.shard.sync), "note its digests", _ANY),
        Row(_S.STAGING, name="late: of a member or a sync that has ended"),
    ),
    **_late(e.RouteEnded, _S.IDLE, _S.GRANTING),
    **{
        (state, e.RouteEnded): (
            Row(None, Coordinator._route, lambda m, ev: m.runs(ev.end.sync), "verified, or taken out", _ANY),
            Row(state, name="late: of a member or a sync that has ended"),
        )
        for state in _ORDERED
    },
    **_late(e.RelayEnded, _S.IDLE, _S.GRANTING),
    **{
        (state, e.RelayEnded): (
            Row(None, Coordinator._relayed, lambda m, ev: m.reads(ev), "verified, or from another engine", _ANY),
            Row(state, name="late: of a member or a sync that has ended"),
        )
        for state in _ORDERED
    },
    (_S.DECIDING, e.DecisionPersisted): (
        Row(None, Coordinator._commit, lambda m, ev: m.runs(ev.sync), "commit what is staged", _ANY),
        Row(_S.DECIDING, name="late: of a member or a sync that has ended"),
    ),
    **_late(e.DecisionPersisted, _S.IDLE, _S.GRANTING, _S.STAGING, _S.COMMITTING),
    (_S.DECIDING, e.DecisionFailed): (
        Row(None, Coordinator._undecided, lambda m, ev: m.runs(ev.sync), "nothing was committed: give up", _ANY),
        Row(_S.DECIDING, name="late: of a member or a sync that has ended"),
    ),
    **_late(e.DecisionFailed, _S.IDLE, _S.GRANTING, _S.STAGING, _S.COMMITTING),
    **_late(e.CommitDone, _S.IDLE, _S.GRANTING, _S.STAGING, _S.DECIDING),
    **_late(e.CommitFailed, _S.IDLE, _S.GRANTING, _S.STAGING, _S.DECIDING),
    (_S.COMMITTING, e.CommitDone): (
        Row(None, Coordinator._committed, lambda m, ev: m.member(ev) is not None, "current", _ANY),
        Row(_S.COMMITTING, name="late: of a member or a sync that has ended"),
    ),
    (_S.COMMITTING, e.CommitFailed): (
        Row(None, Coordinator._not_committed, lambda m, ev: m.member(ev) is not None, "again, or taken out", _ANY),
        Row(_S.COMMITTING, name="late: of a member or a sync that has ended"),
    ),
}
