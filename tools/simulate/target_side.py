"""The agent beside an engine: thin drivers of EngineLeader and Fence, as drivers/engine.py and commit_steps.py.

What is a decision and still stands in those drivers is copied here and marked: decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tools.simulate import invariants as i
from tools.simulate.clock import Cancelled, Life, Lock, Task, Work
from tools.simulate.crew_side import CrewSide
from tools.simulate.direct_rank import DirectRank
from tools.simulate.joining import Holding, Joining, Reader
from tools.simulate.look import Look, Refs, check_readback
from tools.simulate.rank_target import RankTarget
from tools.simulate.relaying import Relaying
from tools.simulate.transfer import Worker
from weightsync.announcement import Announcement, TargetRank
from weightsync.errors import EngineError, InputError, PeerError, ProtocolError, Refused, WeightSyncError
from weightsync.version import Version, torn_name
from weightsync.wire import v1
from weightsync.wire.members import EngineOf, MemberHere
from weightsync_agent.drivers.engine import SILENT_AFTER
from weightsync_agent.engines.base import Capabilities
from weightsync_agent.engines.errors import engine_error
from weightsync_agent.engines.sequence import OPEN_STEPS, Step, commit_steps, direct_steps, refusal
from weightsync_agent.journal.records import UNKNOWN, Journal, JournalRank, JournalState, Reapply, opened
from weightsync_agent.protocol import engine_leader as m
from weightsync_agent.protocol import joiner as j
from weightsync_agent.protocol.fence import Fence, OpenGrant

if TYPE_CHECKING:
    from tools.simulate.pods import EnginePod
    from tools.simulate.world import World


@dataclass(slots=True)
class Context:
    """One commit."""

    decided: v1.Decided
    fence: Fence
    incarnation: str
    mode: Any
    refs: Refs
    ranks: tuple[JournalRank, ...]
    torn: Journal | None = None

    def journal(self, state: JournalState) -> Journal:
        """The record that says so."""
        if state is JournalState.TORN and self.torn is not None:
            return self.torn
        decided = self.decided
        return Journal(state=state, version=decided.version, label=decided.label, incarnation=self.incarnation,
                       ranks=self.ranks, term=self.fence.term, coordinator=self.fence.coordinator,
                       programs=decided.programs)  # fmt: skip


class EngineAgent:
    """One life of the agent beside one engine."""

    def __init__(self, world: World, pod: EnginePod, life: Life) -> None:
        self.world = world
        self.loop = world.loop
        self.pod = pod
        self.volume = pod.volume
        self.engine = pod.engine
        self.life = life
        self.machine = m.EngineLeader()
        self.fence = Fence(*self.volume.terms.get(-1, (0, "")))
        self.targets: dict[int, RankTarget] = {}
        self.direct: dict[int, DirectRank] = {}
        self.workers: list[Worker | Reader] = []
        self.gate: bool | None = None
        self.capabilities = Capabilities(begin_end=pod.begin_end, flush_with_waiting=True)
        self.nonce = world.nonce(16) if pod.nodes > 1 else "0" * 16
        self.crew = CrewSide(self)
        self.look_at = Look(self)
        self.holding = Holding(self)
        self.joining = Joining(self)
        self.relaying = Relaying(self)
        self.probed = ""  # the life of the engine whose capabilities are known
        self.decided: v1.Decided | None = None
        self.silent = 0
        self.told = False  # what it is, in this life
        self.context: Context | None = None
        self.answer: Any = None
        self.committing = Lock(self.loop)
        self.pausing: Task | None = None
        self.looking: Task | None = None
        self.asked: Any = None  # the commit's request, for the ledger
        life.on_end.append(self._die)
        self.spawn(self.run())

    def _die(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.world.network.reset(self.life)

    def spawn(self, work: Work) -> Task:
        """Run it in this life."""
        return Task(self.loop, self.life, work)

    # --- watching ---

    def run(self) -> Work:
        """Look at the engine again and again."""
        try:
            journal = self.volume.read()
        except InputError:
            journal = None
        if journal is not None and journal.decided:
            if journal.term > self.fence.term:
                self._obey(journal.term, journal.coordinator)
            self.decided = v1.Decided(version=journal.version, label=journal.label, term=journal.term,
                                      programs=journal.programs)  # fmt: skip
        if not self.fence.term:
            self._announce()
        while True:
            yield from self._look_once()
            self.joining.look()
            steady = self.machine.state is m.LeaderState.CURRENT
            yield self.loop.sleep(self.world.probe_seconds if steady else self.world.probe_seconds / 2)

    def _look_once(self) -> Work:
        try:
            found = yield self.engine.call(self.life, "name", seconds=0.5)
        except EngineError:
            self.silent += 1
            if self.silent >= SILENT_AFTER:
                self.feed(m.Silent())
                if not self.told:
                    self._announce()
            return
        self.silent = 0
        self.feed(m.Answers() if self.machine.expects(found, self.look_at.base) else m.LifeChanged(found))
        changed = self.machine.crew_changed(self.crew.crew.pods())
        if changed is not None:
            self.feed(changed)

    def feed(self, event: object) -> None:
        """An event for the leader."""
        if isinstance(event, m.Silent) and self.machine.state is not m.LeaderState.COMMITTING:  # decision
            self._end_look()
        before = self.machine.state
        actions = self.world.handle(self.life.name, self.machine, event)
        if isinstance(event, m.StepFailed):
            self._judge(event, before)
        for action in actions:
            self._act(action)

    def _judge(self, failed: m.StepFailed, before: m.LeaderState) -> None:
        """What the engine is taken for, once a step of it has failed."""
        after = self.machine.state
        if failed.reason == m.NOT_CERTIFIED and before is m.LeaderState.COMMITTING:
            i.refused_by_name(self.pod.name, refused=after is m.LeaderState.REFUSED)
        if after is m.LeaderState.LOOKING:
            i.another_process(self.pod.name, failed.reason, same=self.engine.incarnation == self.machine.incarnation)

    def _act(self, action: object) -> None:
        match action:
            case m.Look():
                self._end_look()
                self.looking = self.spawn(self._look(self.looking))
            case m.SetGate(is_open):
                self.gate = is_open
            case m.Announce():
                self._announce()
            case m.KeepPaused():
                if self.pausing is None or self.pausing.done:
                    self.pausing = self.spawn(self._keep_paused())
            case m.RunStep():
                self.spawn(self._step(action))
            case m.AnswerCommit() | m.AnswerOpen():
                self._resolve(None)
            case m.AnswerFailure(reason, message, retryable):
                self._resolve(Refused(message, reason="EngineFailed" if retryable else reason, status=502))
            case _:
                raise TypeError(f"no such action: {action!r}")

    def _resolve(self, error: BaseException | None) -> None:
        if self.answer is not None:
            self.answer.set() if error is None else self.answer.fail(error)

    # --- a look at a life ---

    def _end_look(self) -> None:
        if self.looking is not None:
            self.looking.cancel()

    def _look(self, before: Task | None) -> Work:
        if before is not None and not before.done:
            yield from _settled(before)
        yield self.committing.acquire()
        try:
            yield from self.joining.end("another life is looked at")
            yield from self.relaying.end()
            try:
                event: m.Seen | m.LookFailed = yield from self._describe()
            except ProtocolError:
                raise
            except WeightSyncError as error:
                event = m.LookFailed(str(error))
            self.feed(event)
            self.joining.look()
            if isinstance(event, m.Seen) and not event.problem and isinstance(event.recovery, Reapply):
                yield from self._reapply(event.recovery)
        finally:
            self.committing.release()

    def _describe(self) -> Work:
        if self.pausing is not None and not self.pausing.done:
            self.pausing.cancel()
            yield from _settled(self.pausing)
        return (yield from self.look_at.take())

    def open(self) -> Work:
        """Take over or make the arena of each rank, or take up its parameters."""
        if self.pod.direct:
            sessions = yield self.engine.call(self.life, "seed")
            for rank, session in enumerate(sessions):
                if rank not in self.direct:
                    self.direct[rank] = DirectRank(self, rank)
                yield from self.direct[rank].open(session)
            return
        for rank in range(self.pod.own):
            if rank in self.targets:
                continue
            files = self.volume.arenas.get(rank)
            if files is None:
                names = [f"{self.pod.uid}-{rank}-{index}" for index in range(self.world.target_arenas)]
                files = self.volume.arenas[rank] = [self.world.arena(name, self.pod.first + rank) for name in names]
            target = RankTarget(self, rank, files)
            yield from target.register()
            self.targets[rank] = target

    @property
    def lends(self) -> bool:
        """A joiner reads from here."""
        return self.holding.lending.readers.count(self.loop.now) > 0

    @property
    def served(self) -> Version | None:
        """What the engine serves."""
        return self.machine.version

    @property
    def held(self) -> Mapping[int, RankTarget | DirectRank]:
        """By rank, in whichever mode."""
        return self.direct or self.targets

    def _announce(self) -> None:
        self.told = True
        state = self.machine.state
        ready = state not in (m.LeaderState.ABSENT, m.LeaderState.LOOKING, m.LeaderState.REFUSED)
        self.world.planner.announced(
            self.pod,
            Announcement(
                address=self.pod.address,
                incarnation=self.machine.incarnation,
                ready=ready,
                mode="Direct" if self.pod.direct else "Staged",
                targets=tuple(
                    TargetRank(rank=rank, layout=each.layout, program=each.program)
                    for rank, each in sorted(self.held.items())
                ),
            ),
        )

    def _keep_paused(self) -> Work:
        delay = 0.1
        while self.machine.stays_paused:
            try:
                yield self.engine.call(self.life, "pause", "Abort")
            except EngineError:
                yield self.loop.sleep(delay)
                delay = min(2.0, 2 * delay)
            else:
                return

    # --- commits ---

    def commit(self, request: v1.CommitRequest) -> Work:
        """The decision."""
        self._check_meant(request.target)
        self._obey(request.term, request.coordinator)
        self._check_present()
        yield self.committing.acquire()
        try:
            self.fence.check(request.term, request.coordinator)
            if not self.machine.serves(request.version):
                yield from self._apply(request)
            return v1.CommitAnswer(version=request.version.name, incarnation=self.machine.incarnation,
                                   pause_seconds=0.0, apply_seconds=0.0)  # fmt: skip
        finally:
            self.committing.release()

    def _obey(self, term: int, coordinator: str) -> None:
        self.fence.raise_to(term, coordinator)
        self.volume.terms[-1] = (self.fence.term, self.fence.coordinator)

    def _check_meant(self, uid: str) -> None:  # decision
        if uid not in ("", self.pod.uid):
            raise Refused(f"pod {uid} is meant, and this is {self.pod.uid}", reason="WrongPod")

    def _check_present(self) -> None:  # decision
        if self.machine.state in (m.LeaderState.ABSENT, m.LeaderState.LOOKING):
            raise Refused("the engine is not there", reason="EngineSilent", status=503)

    def _apply(self, request: v1.CommitRequest) -> Work:
        older = self.machine.older(request.version)
        if older:
            raise Refused(older, reason="StaleVersion")
        why = refusal(self.capabilities, request.strategy.pause_mode)
        if why:
            raise Refused(why, reason="PauseModeRefused", status=422)
        if {rank.rank for rank in request.ranks} != {*self.held, *self.crew.ranks}:  # decision
            raise Refused("the commit names other ranks", reason="RanksDiffer")
        self._check_crew(request)
        grants = tuple((rank.rank, rank.grant) for rank in request.ranks)
        decided = v1.Decided(version=request.version, label=request.label, term=request.term,
                             programs=request.programs)  # fmt: skip

        def decide() -> Work:
            self.decided, self.asked = decided, request
            yield from self._run_commit(decided, grants, request.strategy.pause_mode)

        def committed() -> Work:
            yield from self._read_no_more("a sync's version is committed")
            yield from self.crew.holding(request.version, grants, request, decide)

        yield from self._sealed(request, committed)

    def _read_no_more(self, why: str) -> Work:
        yield from self.joining.end(why)
        yield from self.relaying.end()

    def _sealed(self, commit: v1.CommitRequest, work: Callable[[], Work]) -> Work:
        """Do it while every rank of this pod is sealed as the decided version, and kept."""

        def seal(kept: dict[int, str]) -> Work:
            for rank, held in self.held.items():
                grant = yield from held.seal(commit)
                if isinstance(held, RankTarget):
                    kept[rank] = grant

        yield from self._keeping(seal, work)

    def kept(self, grants: Iterable[tuple[int, str]], work: Callable[[], Work]) -> Work:
        """Do it while this pod's arenas of these grants stay as they are."""

        def keep(kept: dict[int, str]) -> Work:
            for rank, grant in grants:
                if rank in self.targets:
                    yield from self.targets[rank].keep(grant)
                    kept[rank] = grant

        yield from self._keeping(keep, work)

    def _keeping(self, first: Callable[[dict[int, str]], Work], work: Callable[[], Work]) -> Work:
        kept: dict[int, str] = {}
        try:
            yield from first(kept)
            yield from work()
        except (WeightSyncError, Cancelled):
            yield from self._release(kept)
            raise
        yield from self._release(kept)

    def _release(self, kept: dict[int, str]) -> Work:
        for rank, grant in kept.items():
            yield from self.targets[rank].release(grant)

    def _check_crew(self, request: v1.CommitRequest) -> None:  # decision
        if self.machine.crew_changed(self.crew.crew.pods()) is not None:
            raise Refused("the engine's other pods are to be looked at first", reason="CrewChanged", status=503)
        for rank in request.ranks:
            here = self.crew.here
            known = here.uid if here is not None and rank.rank in self.crew.ranks else self.pod.uid
            if rank.pod not in ("", known):
                raise Refused(f"the plan has rank {rank.rank} in pod {rank.pod}", reason="PodsDiffer")

    def needs(self, silent_after: float) -> j.Needs | j.NeedsNothing:  # decision
        """Whether the engine needs a version that it can read from another."""
        if self.machine.state not in (m.LeaderState.FRESH, m.LeaderState.TORN):
            return j.NeedsNothing(self.machine.state.value)
        if self.pod.nodes > 1 or not self.targets:
            return j.NeedsNothing("not all of its arenas are here")
        if self.relaying.feeds(silent_after):
            return j.NeedsNothing("a sync has it read from another engine")
        if any(target.kept for target in self.targets.values()):
            return j.NeedsNothing("a commit begins")
        since = [at for target in self.targets.values() if (at := target.written_since) is not None]
        if since and self.loop.now < max(since) + silent_after:
            return j.NeedsNothing("a sync writes to it")
        return j.Needs(self.decided, self.decided is not None and self.holding.lending.whole(self.decided.version))

    def take(self, own: v1.Decided | None, decided: v1.Decided, coordinator: str) -> Work:
        """Serve what was pulled, or lies sealed here."""
        self._check_present()
        yield self.committing.acquire()
        try:
            if self.machine.serves(decided.version):
                return
            older = self.machine.older(decided.version)
            if older or self.decided != own:  # decision
                raise Refused(older or "another was decided meanwhile", reason="StaleVersion")
            grants = tuple((rank, target.grant_of(decided.version)) for rank, target in sorted(self.targets.items()))
            request = v1.CommitRequest(
                term=decided.term, coordinator=coordinator, sync="", target=self.pod.uid, version=decided.version,
                programs=decided.programs, strategy=self.world.strategy,
                ranks=tuple(
                    v1.RankCommit(rank=rank, grant=each, program=self.targets[rank].program) for rank, each in grants
                ),
            )  # fmt: skip

            def decide() -> Work:
                if decided.term > self.fence.term:
                    self._obey(decided.term, coordinator)
                self.world.ledger.taken(self.pod.name, own, decided)
                self.decided, self.asked = decided, None
                yield from self._run_commit(decided, grants, self.world.strategy.pause_mode)

            yield from self._sealed(request, decide)
        finally:
            self.committing.release()

    def _reapply(self, recovery: Reapply) -> Work:
        self.asked = None
        try:
            journal = self.volume.read()
            programs = journal.programs if journal is not None else {}
            decided = v1.Decided(version=recovery.version, term=self.fence.term, programs=programs)
            grants = tuple(sorted(recovery.grants.items()))

            def reapply() -> Work:
                yield from self.crew.holding(
                    recovery.version, grants, None, lambda: self._run_commit(decided, grants, "Abort")
                )

            yield from self.kept(grants, reapply)
        except (PeerError, EngineError, InputError) as error:
            if self.machine.state is m.LeaderState.REAPPLYING:
                self.feed(m.ReapplyFailed(str(error)))

    def _run_commit(self, decided: v1.Decided, grants: tuple[tuple[int, str], ...], mode: Any) -> Work:
        version = decided.version
        if self.probed != self.look_at.life:
            yield self.engine.call(self.life, "name")  # its capabilities, asked once for each life
            self.probed = self.look_at.life
        ordered = direct_steps if self.direct else commit_steps
        event = m.CommitAsked(version, grants, ordered(self.capabilities, mode, certified=self.machine.certified))
        if self.pausing is not None and not self.pausing.done:
            yield from _settled(self.pausing)
        if self.asked is not None:
            self.fence.check(self.asked.term, self.asked.coordinator)
        own = self.machine.state is m.LeaderState.REAPPLYING
        if not self.machine.takes(event):
            i.gets_it_back(self.pod.name, self.machine.state.value, takes=not own)
            raise Refused(f"the engine is {self.machine.state.value}", reason="Busy", status=503)
        refs = self.look_at.refs(() if self.direct else grants, version.root)
        ranks = tuple(self._journal_rank(rank, grant) for rank, grant in grants)
        fence = Fence(decided.term, self.fence.coordinator if decided.term == self.fence.term else "")
        self.context = Context(decided, fence, self.machine.incarnation, mode, refs, ranks)
        if self.asked is not None:
            self.world.ledger.effect(self.pod.name, "a commit", self.asked.term, self.asked.coordinator)
        answer = self.answer = self.world.future()
        self.feed(event)
        i.gets_it_back(self.pod.name, self.machine.state.value, takes=not (own and answer.done))
        yield answer

    def _journal_rank(self, rank: int, grant: str) -> JournalRank:
        if rank in self.crew.ranks:
            return JournalRank.model_validate(self.crew.granted(grant).model_dump())
        return self.held[rank].granted(grant).journal_rank()

    def _step(self, action: m.RunStep) -> Work:
        context = self.context
        assert context is not None  # noqa: S101 - a step belongs to a commit
        try:
            yield from self._run_step(action.step, context)
        except ProtocolError:
            raise
        except WeightSyncError as error:
            i.kept_since_sealed(self.pod.name, action.step.name, error.reason)
            self.feed(m.StepFailed(error.reason, str(error), error.retryable))
        else:
            self.feed(m.StepDone())

    def _run_step(self, step: Any, context: Context) -> Work:  # noqa: C901, PLR0912 - one case for each step
        engine, life, name = self.engine, self.life, context.decided.version.name
        match step:
            case Step.JOURNAL_TORN:
                yield from self.write(context.journal(JournalState.TORN))
            case Step.PAUSE:
                yield engine.call(life, "pause", context.mode)
            case Step.MARK_TORN:
                yield engine.call(life, "set_version", torn_name(name))
            case Step.BEGIN:
                yield engine.call(life, "begin")
            case Step.APPLY:
                refs = context.refs
                grants = [(rank, grant) for _, rank, grant, _ in refs.arenas]
                yield from self.kept(grants, lambda: self.crew.apply(self.look_at.life, refs))
            case Step.END:
                yield engine.call(life, "end")
            case Step.SAME_LIFE:
                for each in self.direct.values():
                    yield from each.check_life()
            case Step.READ_BACK if self.direct:
                for each in self.direct.values():
                    yield from each.read_back()
            case Step.READ_BACK:
                yield from check_readback(self, context.refs)
            case Step.FLUSH:
                yield engine.call(life, "flush")
            case Step.MARK_CURRENT:
                yield from self._confirm(torn_name(name))
                yield engine.call(life, "set_version", name)
            case Step.JOURNAL_CURRENT:
                yield from self.write(context.journal(JournalState.CURRENT))
            case Step.CONTINUE:
                yield engine.call(life, "resume")
            case Step.CONFIRM:
                yield from self._confirm(name)
            case Step.GATE:
                self.gate = True
            case _:
                raise TypeError(f"no such step: {step!r}")

    def _confirm(self, name: str) -> Work:
        found = yield self.engine.call(self.life, "name")
        if found != name:
            raise engine_error(m.ANOTHER_LIFE, f"{name} was left, and {found} answers")

    def write(self, journal: Journal) -> Work:
        """On disk, synced."""
        self.pod.writing = True
        yield self.loop.sleep(self.world.disk_seconds)
        if self.world.fault_chance("disk full"):
            self.pod.writing = False
            raise InputError("journal: cannot be written: no space left")
        self.volume.write(journal)
        self.pod.writing = False

    # --- requests ---

    def serve(self, path: str, body: Any) -> Any:  # noqa: C901, PLR0911, PLR0912 - one case for each path
        """See network.Host."""
        match path:
            case "/v1/grants":
                self._check_meant(body.target)
                self._obey(body.term, body.coordinator)
                self.fence.hear(body.sync)
                self.world.ledger.heard(self.life.name, body.sync)
                self._check_present()
                if self.machine.state is m.LeaderState.REFUSED:
                    raise Refused(self.machine.problem, reason="EngineRefused", status=422)
                if self.machine.state in (m.LeaderState.COMMITTING, m.LeaderState.REAPPLYING):  # decision
                    raise Refused("the engine is being committed to", reason="Busy", status=503)
                self._check_wanted(body)
                if self.joining.applies:  # decision
                    raise Refused("the engine takes over what it read from another", reason="Fencing", status=503)
                return self._grant(self._target(body.rank), body)
            case "/v1/void":
                self.fence.check(body.term, body.coordinator)
                return self._target(body.rank).void(body)
            case "/v1/receipts":
                self.fence.check(body.term)
                return self._target(body.rank).receipts(body)
            case "/v1/commits":
                return self.commit(body)
            case "/v1/relays":
                self._check_meant(body.target)
                self._obey(body.term, body.coordinator)
                self._check_present()
                return self.relaying.order(body)
            case "/v1/passes":
                self.fence.check(body.term)
                if body.rank not in self.targets:
                    raise Refused(f"rank {body.rank} has no arena here", reason="UnknownRank", status=404)
                self.holding.lending.readers.passes(body.reader, self.loop.now)
                return self.targets[body.rank].passes(body)
            case "/v1/welcome":
                self._obey(body.term, body.coordinator)
                self.feed(m.Welcomed(body.initial_gate == "Open"))
                return v1.Accepted()
            case "/v1/status":
                return self._status()
            case "/v1/held":
                return self.holding.held()
            case "/v1/leases":
                return self.holding.lease(body)
            case "/v1/leases/more":
                return self.holding.more(body)
            case "/v1/leases/end":
                return self.holding.end(body)
            case "/v1/members":
                return self._member(body)
            case _:
                raise Refused(f"no such path: {path}")

    def _grant(self, rank: RankTarget | DirectRank, body: v1.GrantRequest) -> Work:
        yield from self.joining.end("a sync begins")
        yield from self.relaying.end()
        if isinstance(rank, DirectRank):
            return (yield from self._grant_direct(rank, body))
        return (yield from rank.grant(body, self.fence))

    def _check_wanted(self, request: v1.GrantRequest) -> None:  # decision
        outdated = self.machine.outdated(request.lineage, request.number)
        if outdated:
            raise Refused(outdated, reason="StaleVersion")

    def _member(self, here: MemberHere) -> EngineOf:
        self.crew.crew.came(here, self.loop.now)
        state = self.machine.state
        ready = state not in (m.LeaderState.ABSENT, m.LeaderState.LOOKING, m.LeaderState.REFUSED)
        return EngineOf(
            leader=self.pod.uid, life=self.nonce, ranks=tuple(self.crew.crew.share(here.node)),
            engine_ranks=self.pod.ranks, incarnation=self.machine.incarnation, ready=ready, gate=bool(self.gate),
            version=self.machine.version if state is m.LeaderState.CURRENT else None, busy=self.committing.held,
        )  # fmt: skip

    def _grant_direct(self, rank: DirectRank, request: v1.GrantRequest) -> Work:
        def let_in(grant: OpenGrant) -> Work:
            if self.pausing is not None and not self.pausing.done:
                yield from _settled(self.pausing)
            event = m.OpenAsked(request.sync, self._version(request), OPEN_STEPS)
            if not self.machine.takes(event):
                raise Refused(f"the engine is {self.machine.state.value}", reason="Busy", status=503)
            try:
                before, unreadable = self.volume.read(), None
            except InputError:
                before, unreadable = None, event.version
            others = [w for each in self.direct.values() if each is not rank for w in each.writers()]
            self.context = Context(
                v1.Decided(version=event.version, term=self.fence.term),
                Fence(self.fence.term, self.fence.coordinator),
                self.machine.incarnation, request.pause_mode, self.look_at.refs((), ""), (),
                opened(before, life=self.machine.incarnation,
                       ranks=tuple(each.journal_rank() for each in self.direct.values()),
                       writers=(*others, *rank.named(grant)), unreadable=unreadable),
            )  # fmt: skip
            answer = self.answer = self.world.future()
            self.feed(event)
            yield answer

        yield self.committing.acquire()
        try:
            self.fence.check_sync(request.term, request.coordinator, request.sync)
            self._check_present()
            self._check_wanted(request)
            return (yield from rank.grant(request, self.fence, let_in))
        finally:
            self.committing.release()

    @staticmethod
    def _version(request: v1.GrantRequest) -> Version:
        return Version(lineage=request.lineage, number=request.number, root=UNKNOWN)

    def _target(self, rank: int) -> RankTarget | DirectRank:
        found = self.held.get(rank)
        if found is None:
            raise Refused(f"rank {rank} is not here (yet)", reason="UnknownRank", status=404)
        return found

    def _status(self) -> v1.AgentStatus:
        machine = self.machine
        state = JournalState.CURRENT if machine.state is m.LeaderState.CURRENT else None
        if machine.stays_paused:
            state = JournalState.TORN
        return v1.AgentStatus.model_construct(
            uid=self.pod.uid,
            term=self.fence.term,
            incarnation=machine.incarnation,
            ready=machine.state not in (m.LeaderState.ABSENT, m.LeaderState.LOOKING),
            version=machine.version.name if machine.version else "",
            journal=state.value if state else "",
            gate=bool(self.gate),
            decided=self.decided,
            ranks=(),
            pulls=self.joining.machine.hopes,
        )


def _settled(task: Task) -> Work:
    """Wait until it has ended, however."""
    try:
        yield task
    except (WeightSyncError, Cancelled):
        return
