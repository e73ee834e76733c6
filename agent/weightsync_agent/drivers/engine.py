"""The agent beside an engine: watches its life, runs protocol.engine_leader.EngineLeader, owns its ranks' arenas."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

import structlog

from weightsync.announcement import Announcement
from weightsync.errors import EngineError, InputError, Refused, WeightSyncError
from weightsync.plan import Strategy
from weightsync.version import Version
from weightsync.wire.members import EngineOf, MemberHere
from weightsync.wire.v1 import (
    Accepted,
    AgentStatus,
    CommitAnswer,
    CommitRequest,
    Decided,
    Grant,
    GrantRequest,
    PassAnswer,
    PassRequest,
    RankCommit,
    Receipts,
    ReceiptsAnswer,
    RelayEnd,
    RelayOrder,
    VoidRequest,
    Welcome,
)
from weightsync_agent import failpoints
from weightsync_agent.devices.route import Side
from weightsync_agent.drivers.background import Background
from weightsync_agent.drivers.commit_steps import CommitContext, StepRunner
from weightsync_agent.drivers.comparing import serves
from weightsync_agent.drivers.crew import CrewCalls
from weightsync_agent.drivers.direct_rank import DirectRank
from weightsync_agent.drivers.drain import AskQuiet
from weightsync_agent.drivers.exchange import Exchange
from weightsync_agent.drivers.joining import Joining
from weightsync_agent.drivers.kept_term import KeptTerm
from weightsync_agent.drivers.landing import Landing, Wish, nobody, staged
from weightsync_agent.drivers.look import Look
from weightsync_agent.drivers.opening import opening
from weightsync_agent.drivers.programs import Programs
from weightsync_agent.drivers.rank_target import RankTarget
from weightsync_agent.drivers.ranks import EngineRanks, StartRankWorker
from weightsync_agent.drivers.relaying import Relaying
from weightsync_agent.engines.base import EngineAdapter, PauseMode
from weightsync_agent.engines.sequence import OPEN_STEPS, commit_steps, direct_steps, refusal
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import Fresh, Journal, JournalState, Reapply
from weightsync_agent.observability import metrics
from weightsync_agent.own_pod.base import OwnPod
from weightsync_agent.protocol import engine_leader as m
from weightsync_agent.protocol import joiner as j
from weightsync_agent.protocol.fence import OpenGrant
from weightsync_agent.threads import given_up, in_thread
from weightsync_agent.volume import Volume

log = structlog.get_logger(__name__)

MakeJoining = Callable[["EngineDriver", EngineRanks], Joining]
MakeRelaying = Callable[[EngineRanks], Relaying]

SILENT_AFTER = 2  # unanswered looks in a row: one may be a busy engine


class EngineDriver:
    """One engine. crew: how its other pods are asked, None where it can be of this pod alone."""

    def __init__(
        self,
        uid: str,
        address: str,
        *,
        adapter: EngineAdapter,
        volume: Volume,
        journal: StateFile[Journal],
        own_pod: OwnPod,
        programs: Programs,
        start: StartRankWorker,
        memory_limit: int | None,
        probe_seconds: float,
        wish: Callable[[], Awaitable[Wish]] = staged,
        quiet: AskQuiet | None = None,
        arenas: int = 1,
        initial_gate: Callable[[], Awaitable[bool]] | None = None,
        side: Side | None = None,
        crew: CrewCalls | None = None,
        joining: MakeJoining | None = None,
        relaying: MakeRelaying | None = None,
    ) -> None:
        self.uid = uid
        self.life = secrets.token_hex(8)  # of this agent
        self._crew = crew
        self.machine = m.EngineLeader()
        self._term = KeptTerm(volume.directory, "engine")
        self.fence = self._term.fence()
        self._address = address
        self._adapter = adapter
        self._journal = journal
        self._own_pod = own_pod
        self._ranks = EngineRanks(
            volume,
            programs,
            start,
            landing=Landing(wish, adapter.seed, memory_limit=memory_limit, arenas=arenas),
            make_direct=lambda program, begin: DirectRank(program, begin, adapter.seed, quiet or nobody),
            arenas=arenas,
            served=lambda: self.machine.version,
            side=side,
            crew=crew,
        )
        self._side = side or Side(uid)
        self.exchange = Exchange(
            uid,
            self._ranks,
            lambda: self._decided,
            joining=joining(self, self._ranks) if joining is not None else None,
            relaying=relaying(self._ranks) if relaying is not None else None,
        )
        self._look_at = Look(adapter, journal, self._ranks, self._lacks_programs)
        self._decided: Decided | None = None
        self._probe = probe_seconds
        self._initial_gate = initial_gate
        self._silent = 0
        self._context: CommitContext | None = None
        self._answer: asyncio.Future[None] | None = None
        self._committing = asyncio.Lock()
        self._pausing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._granting = 0  # requests for a grant that are under way: a rank may take seconds over one
        self._background = Background("engine")

    @property
    def targets(self) -> dict[int, RankTarget]:
        """Every rank's arena, by rank."""
        return self._ranks.targets

    # --- watching ---

    async def run(self) -> None:
        """Until cancelled: look at the engine each probe_seconds."""
        self._restore_fence()
        if not self.fence.term:
            self._announce()
        # Else a coordinator knows it: what an agent before this one announced stands until this one has looked. One
        # that said first that it knows nothing would leave the plan, and what its arenas hold would be written anew.
        while True:
            await self._look_once()
            self.exchange.look()
            await asyncio.sleep(self._probe)

    def _restore_fence(self) -> None:
        try:
            journal = self._journal.read()
        except InputError:
            log.exception("the journal cannot be read; the engine counts as torn")
            return
        if journal is not None and journal.decided:
            if journal.term > self.fence.term:  # the file of the term was lost
                self._obey(journal.term, journal.coordinator)
            self._decided = Decided(
                version=journal.version, label=journal.label, term=journal.term, programs=journal.programs
            )

    async def _look_once(self) -> None:
        try:
            found = await self._adapter.weight_version()
        except EngineError as error:
            self._silent += 1
            if self._silent >= SILENT_AFTER:
                self._feed(m.Silent(), why=str(error))
                if self._own_pod.announcement is None:
                    self._announce()
            return
        self._silent = 0
        if self.machine.expects(found, self._look_at.base):
            self._feed(m.Answers())
        else:
            self._feed(m.LifeChanged(found))
        changed = self.machine.crew_changed(self._crew.crew.pods()) if self._crew is not None else None
        if changed is not None:
            self._feed(changed, why=changed.message)

    def _feed(self, event: object, **detail: str) -> None:
        before = self.machine.state
        if isinstance(event, m.Silent) and before is not m.LeaderState.COMMITTING:
            self._end_look()
        actions = self.machine.handle(event, time.monotonic())
        if self.machine.state is not before:
            log.info("engine", was=before.name, now=self.machine.state.name, on=type(event).__name__, **detail)
        for action in actions:
            self._act(action)

    def _act(self, action: object) -> None:
        match action:
            case m.Look():
                self._end_look()
                self._looking = self._background.spawn(self._look(self._looking))
            case m.SetGate(open_, reason, message):
                self._own_pod.set_gate(open_, reason, message if not open_ else "")
            case m.Announce():
                self._announce()
            case m.KeepPaused():
                if self._pausing is None or self._pausing.done():
                    self._pausing = self._background.spawn(self._keep_paused())
            case m.RunStep():
                self._background.spawn(self._step(action))
            case m.AnswerCommit() | m.AnswerOpen():
                self._resolve(None)
            case m.AnswerFailure(reason, message, retryable):
                self._resolve(Refused(message, reason="EngineFailed" if retryable else reason, status=502))
            case _:
                raise TypeError(f"no such action: {action!r}")

    def _resolve(self, error: BaseException | None) -> None:
        if self._answer is None or self._answer.done():
            return
        if error is None:
            self._answer.set_result(None)
        else:
            self._answer.set_exception(error)

    # --- a look at a life ---

    def _end_look(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self, before: asyncio.Task[None] | None) -> None:
        """One at a time, and none while a commit runs: its standstill ends with a resume, whoever paused since."""
        if before is not None:
            await asyncio.wait({before})
        async with self._committing:
            await self.exchange.end("another life of the engine is looked at")
            try:
                event: m.Seen | m.LookFailed = await self._describe()
            except WeightSyncError as error:
                log.warning("the engine could not be looked at", why=str(error))
                event = m.LookFailed(str(error))
            except Exception as error:
                if not given_up():
                    self._feed(m.LookFailed(f"{type(error).__name__}: {error}"))
                raise
            if given_up():  # the standstill's own failure hid the cancellation
                raise asyncio.CancelledError
            self._feed(event)
            self.exchange.look()  # before anybody learns that it can be written to
            if isinstance(event, m.Seen) and not event.problem:
                match event.recovery:
                    case Reapply(version, _, grants):
                        await self._reapply(version, tuple(sorted(grants.items())))
                    case Fresh() if self._asking is None or self._asking.done():
                        self._asking = self._background.spawn(self._ask_initial_gate())

    async def _describe(self) -> m.Seen:
        """To be called with ``_committing`` held."""
        if self._pausing is not None and not self._pausing.done():
            self._pausing.cancel()  # it was meant for another life, and would stop this one once it lands
            await asyncio.wait({self._pausing})
        return await self._look_at.take()

    def _lacks_programs(self) -> None:
        """Nobody can feed the engine meanwhile, and only its owner can help. What it serves it goes on serving."""
        why = self._look_at.missing
        log.warning("the engine cannot be fed", why=why)
        if self._own_pod.gate is None or not self._own_pod.gate.status:
            self._own_pod.set_gate(False, "NoCopyProgram", why)
        self._announce()

    def _is_ready(self) -> bool:
        return self.machine.state not in (m.LeaderState.ABSENT, m.LeaderState.LOOKING, m.LeaderState.REFUSED)

    def _announce(self) -> None:
        self._own_pod.announce(
            Announcement(
                address=self._address,
                incarnation=self.machine.incarnation,
                ready=self._is_ready(),
                mode=self._ranks.mode,
                targets=self._ranks.announced(),
                engine_ranks=self._look_at.engine_ranks,
                checkpoint=self._ranks.checkpoint,
                replica_bytes=self._ranks.replica_bytes,
                devices=self._side.devices,
                no_device=self._side.why[:512],
                refused=(self.machine.problem or self._look_at.missing)[:1024],
            )
        )

    async def _ask_initial_gate(self) -> None:
        """Nobody may be there to welcome the engine: then the resource itself says whether its gate may open."""
        while self.machine.state is m.LeaderState.FRESH and self._initial_gate is not None:
            if self._own_pod.gate is not None and self._own_pod.gate.status:
                return
            try:
                allowed = await self._initial_gate()
            except WeightSyncError as error:
                log.warning("whether the initial gate may open is not known yet", why=str(error))
                allowed = False
            if allowed:
                self._feed(m.Welcomed(True))
                return
            await asyncio.sleep(1.0)

    async def _keep_paused(self) -> None:
        delay = 0.1
        while self.machine.stays_paused:
            try:
                await self._adapter.pause("Abort")
            except EngineError as error:
                log.warning("a torn engine could not be paused yet", why=str(error))
                await asyncio.sleep(delay)
                delay = min(2.0, 2 * delay)
            else:
                return

    # --- commits ---

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        """The decision. Idempotent: answered at once where the engine serves that version."""
        self._check_meant(request.target)
        self._obey(request.term, request.coordinator)
        self._check_present()  # a look may last as long as the engine's start: nobody waits for that here
        await failpoints.reach("target", "decided")
        async with self._committing:
            self.fence.check(request.term, request.coordinator)  # another may have come while this one waited
            if not self.machine.serves(request.version):
                with metrics.COMMIT_SECONDS.time():
                    await self._apply(request)
            await failpoints.reach("target", "committed")
            context = self._context
            return CommitAnswer(
                version=request.version.name,
                incarnation=self.machine.incarnation,
                pause_seconds=context.pause_seconds if context else 0.0,
                apply_seconds=context.apply_seconds if context else 0.0,
            )

    def _obey(self, term: int, coordinator: str) -> None:
        """Raises Refused for a term that is over; a new one is on disk before anything is answered under it."""
        self.fence.raise_to(term, coordinator)
        self._term.keep(self.fence)  # a few bytes in memory-backed storage, once a term: no thread

    def _check_meant(self, uid: str) -> None:
        """The caller's plan may be older than this pod, which came to the address of another."""
        if uid not in ("", self.uid):
            raise Refused(f"pod {uid} is meant, and this is {self.uid}: it replaced that one", reason="WrongPod")

    def _check_present(self) -> None:
        if self.machine.state in (m.LeaderState.ABSENT, m.LeaderState.LOOKING):
            raise Refused(f"the engine is not there: {self.machine.state.value}", reason="EngineSilent", status=503)

    async def _apply(self, request: CommitRequest) -> None:
        older = self.machine.older(request.version)
        if older:
            raise Refused(older, reason="StaleVersion")
        capabilities = await self._adapter.capabilities()
        why = refusal(capabilities, request.strategy.pause_mode)
        if why:
            raise Refused(why, reason="PauseModeRefused", status=422)
        named = {rank.rank for rank in request.ranks}
        if named != self._ranks.numbers:
            raise Refused(
                f"the commit names ranks {sorted(named)}, here are {sorted(self._ranks.numbers)}",
                reason="RanksDiffer",
            )
        self._check_crew(request)
        grants = tuple((rank.rank, rank.grant) for rank in request.ranks)
        async with self._ranks.sealed(request):
            await self.exchange.end("a sync's version is committed")
            async with self._ranks.holding(request.version, grants, request):
                self._decided = Decided(
                    version=request.version, label=request.label, term=request.term, programs=request.programs
                )
                await self._run_commit(self._decided, grants, request.strategy.pause_mode, request.coordinator)

    def _check_crew(self, request: CommitRequest) -> None:
        """Raises Refused unless the plan's pods are those that were looked at, in these lives of their agents."""
        if self._crew is not None and self.machine.crew_changed(self._crew.crew.pods()) is not None:
            raise Refused("the engine's other pods are to be looked at first", reason="CrewChanged", status=503)
        for rank in request.ranks:
            meant, known = rank.pod, self._ranks.pod_of(rank.rank) or self.uid
            if meant not in ("", known):
                raise Refused(
                    f"the plan has rank {rank.rank} in pod {meant}, the engine in pod {known}", reason="PodsDiffer"
                )

    # --- joins ---

    def needs(self, silent_after: float) -> j.Needs | j.NeedsNothing:
        """Whether the engine needs a version that it can read from another engine. See drivers.joining.Engine."""
        state, targets = self.machine.state, self.targets
        if state not in (m.LeaderState.FRESH, m.LeaderState.TORN):
            return j.NeedsNothing(f"the engine: {state.value}")
        if not targets or self._ranks.remote or self._look_at.engine_ranks != len(targets):
            return j.NeedsNothing("its arenas are not, or not all of them, here")
        if self._granting or any(target.kept for target in targets.values()):
            return j.NeedsNothing("a sync begins, or its commit does")  # each has an arena that we would read into
        if self.exchange.feeds(silent_after):
            return j.NeedsNothing("a sync has it read from another engine")
        since = [at for target in targets.values() if (at := target.written_since) is not None]
        if since and time.monotonic() < max(since) + silent_after:
            return j.NeedsNothing("a sync writes to it")
        own = self._decided
        return j.Needs(own, own is not None and self.exchange.holding.whole(own.version))

    async def take(self, own: Decided | None, decided: Decided, coordinator: str, mode: PauseMode) -> None:
        """Serve what was pulled, or lies sealed here. coordinator: of the decision's term, "" where not known.

        Raises Refused where it is not whole, or where another version was decided here meanwhile, EngineError.
        """
        self._check_present()
        async with self._committing:
            if self.machine.serves(decided.version):
                return
            older = self.machine.older(decided.version)
            if older or self._decided != own:
                raise Refused(
                    older or "the engine was told to serve another version meanwhile", reason="StaleVersion"
                )
            grants = tuple((rank, target.grant_of(decided.version)) for rank, target in sorted(self.targets.items()))
            request = CommitRequest(
                term=decided.term, coordinator=coordinator, sync="", target=self.uid, version=decided.version,
                label=decided.label, programs=decided.programs, strategy=Strategy(pause_mode=mode),
                ranks=tuple(
                    RankCommit(rank=rank, grant=grant, program=self.targets[rank].program.digest)
                    for rank, grant in grants
                ),
            )  # fmt: skip
            async with self._ranks.sealed(request):
                if decided.term > self.fence.term:
                    self._obey(decided.term, coordinator)  # whoever decided before has nothing to say here any more
                self._decided = decided
                await self._run_commit(decided, grants, mode)

    async def _reapply(self, version: Version, grants: tuple[tuple[int, str], ...]) -> None:
        """To be called with ``_committing`` held."""
        try:
            journal = await in_thread(self._journal.read)
            label, programs = (journal.label, journal.programs) if journal is not None else ("", {})
            decided = Decided(version=version, label=label, term=self.fence.term, programs=programs)
            async with self._ranks.kept(grants), self._ranks.holding(version, grants):
                await self._run_commit(decided, grants, "Abort")
        except WeightSyncError as error:
            log.warning("the version could not be reapplied; the engine waits for a sync", why=str(error))
            if self.machine.state is m.LeaderState.REAPPLYING:
                self._feed(m.ReapplyFailed(str(error)))

    async def _run_commit(
        self, decided: Decided, grants: tuple[tuple[int, str], ...], pause_mode: PauseMode, coordinator: str = ""
    ) -> None:
        """coordinator: who asked; "": nobody, the engine gets back what it had, whichever term has begun."""
        version = decided.version
        capabilities = await self._adapter.capabilities()
        mode: PauseMode = "Abort" if refusal(capabilities, pause_mode) else pause_mode
        ordered = direct_steps if self._ranks.direct else commit_steps
        event = m.CommitAsked(version, grants, ordered(capabilities, mode, certified=self.machine.certified))
        if self._pausing is not None and not self._pausing.done():
            await asyncio.wait({self._pausing})  # a pause that arrives after our continue would stop a whole engine
        if coordinator:
            self.fence.check(decided.term, coordinator)  # another may have come while this one waited
        if not self.machine.takes(event):
            raise Refused(f"the engine is {self.machine.state.value}", reason="Busy", status=503)
        paused_at = self._context.paused_at if self._ranks.direct and self._context is not None else 0.0
        self._context = CommitContext(
            paused_at=paused_at,
            version=version,
            label=decided.label,
            programs=decided.programs,
            term=decided.term,
            coordinator=self.fence.coordinator if decided.term == self.fence.term else "",
            incarnation=self.machine.incarnation,
            pause_mode=mode,
            arenas=tuple(self._ranks.ref(rank, grant, version.root) for rank, grant in grants if self.targets),
            ranks=tuple(self._ranks.journal_rank(rank, grant) for rank, grant in grants),
        )
        self._answer = asyncio.get_running_loop().create_future()
        joins = self.machine.version is None
        self._feed(event)
        await self._answer
        metrics.JOINS.inc(joins)

    async def _step(self, action: m.RunStep) -> None:
        context = self._context
        if context is None:
            raise TypeError("a step without a commit")
        runner = StepRunner(self._adapter, self._journal, self._own_pod, self._ranks)
        try:
            await runner.run(action.step, context)
        except WeightSyncError as error:
            log.warning("commit step failed", step=action.step.name, version=action.version.name, why=str(error))
            metrics.COMMITS.labels(outcome=error.reason).inc()
            self._feed(m.StepFailed(error.reason, str(error), error.retryable))
        except Exception as error:  # a bug, and no reason to commit for ever: whether it had an effect is unknown
            reason = type(error).__name__
            metrics.COMMITS.labels(outcome=reason).inc()
            self._feed(m.StepFailed(reason, f"{reason}: {error}", True))
            raise
        else:
            self._feed(m.StepDone())

    # --- requests ---

    async def grant(self, request: GrantRequest) -> Grant:
        """A coordinator's handshake with one rank."""
        self._check_meant(request.target)
        self._obey(request.term, request.coordinator)
        self.fence.hear(request.sync)
        self._check_present()
        if self.machine.state is m.LeaderState.REFUSED:
            raise Refused(self.machine.problem, reason="EngineRefused", status=422)
        if self.machine.state in (m.LeaderState.COMMITTING, m.LeaderState.REAPPLYING):
            raise Refused("the engine is being committed to", reason="Busy", status=503)
        self._check_wanted(request)
        rank = self._ranks.find(request.rank)
        self.exchange.check_grant()
        self._granting += 1
        try:
            await self.exchange.end("a sync begins")
            if isinstance(rank, DirectRank):
                grant = await self._grant_direct(rank, request)
            else:
                grant = self.exchange.told(await rank.grant(request, self.fence))
        finally:
            self._granting -= 1
        await failpoints.reach("target", "handshake")
        return grant

    def _check_wanted(self, request: GrantRequest) -> None:
        """In Direct mode a grant ends an engine's service: none for what could never be committed."""
        outdated = self.machine.outdated(request.lineage, request.number)
        if outdated:
            raise Refused(outdated, reason="StaleVersion")

    async def _grant_direct(self, rank: DirectRank, request: GrantRequest) -> Grant:
        """The engine is torn, on disk, and paused before anybody is let into its memory."""

        async def let_in(grant: OpenGrant) -> None:
            capabilities = await self._adapter.capabilities()
            why = refusal(capabilities, request.pause_mode)
            if why:
                raise Refused(why, reason="PauseModeRefused", status=422)
            if self._pausing is not None and not self._pausing.done():
                await asyncio.wait({self._pausing})
            others = [each for each in self._ranks.direct.values() if each is not rank]
            life = self.machine.incarnation
            context = await opening(request, rank, grant, journal=self._journal, life=life, others=others)
            await self._open(request, context)

        async with self._committing:
            self.fence.check_sync(request.term, request.coordinator, request.sync)  # another may have come meanwhile
            self._check_present()
            self._check_wanted(request)
            return await rank.grant(request, self.fence, let_in)

    async def _open(self, request: GrantRequest, context: CommitContext) -> None:
        """To be called with ``_committing`` held. Raises Refused where the engine could not be paused."""
        event = m.OpenAsked(request.sync, context.version, OPEN_STEPS)
        if not self.machine.takes(event):
            raise Refused(f"the engine is {self.machine.state.value}", reason="Busy", status=503)
        if self.machine.opened == request.sync and self._context is not None:
            context.paused_at = self._context.paused_at
        self._context = context
        self._answer = asyncio.get_running_loop().create_future()
        self._feed(event)
        await self._answer

    def member(self, here: MemberHere) -> EngineOf:
        """Another pod of the engine is there: what it is part of."""
        if self._crew is None:
            raise Refused(f"pod {self.uid} leads no other pod", reason="NotLeader")
        self._crew.came(here)
        machine, gate = self.machine, self._own_pod.gate
        return EngineOf(
            leader=self.uid,
            life=self.life,
            ranks=tuple(self._crew.crew.share(here.node)),
            engine_ranks=self._look_at.engine_ranks,
            incarnation=machine.incarnation,
            ready=self._is_ready(),
            gate=gate is not None and gate.status,
            version=machine.version if machine.state is m.LeaderState.CURRENT else None,
            busy=self._committing.locked(),
        )

    async def void(self, request: VoidRequest) -> Accepted:
        """Writers of a grant never got an order."""
        self.fence.check(request.term, request.coordinator)
        await self._ranks.find(request.rank).void(request)
        return Accepted()

    async def receipts(self, request: Receipts) -> ReceiptsAnswer:
        """A writer's buckets are terminal."""
        self.fence.check(request.term)
        return await self._ranks.find(request.rank).receipts(request)

    async def relay(self, order: RelayOrder) -> RelayEnd:
        """Read from another engine what it verifies in the same sync; told again and again until it has ended."""
        self._check_meant(order.target)
        self._obey(order.term, order.coordinator)
        self._check_present()  # a look lends the arenas, and has ended what read into them
        return await self.exchange.relay(order)

    async def passes(self, request: PassRequest) -> PassAnswer:
        """Another engine reads from here."""
        self.fence.check(request.term)
        return await self.exchange.passes(request)

    async def welcome(self, request: Welcome) -> Accepted:
        """Nothing was published yet, says the coordinator."""
        self._obey(request.term, request.coordinator)
        self._feed(m.Welcomed(request.initial_gate == "Open"))
        return Accepted()

    def status(self) -> AgentStatus:
        """What the engine serves, as far as is known here."""
        machine = self.machine
        state = JournalState.CURRENT if machine.state is m.LeaderState.CURRENT else None
        if machine.stays_paused:
            state = JournalState.TORN
        gate = self._own_pod.gate
        return AgentStatus.model_validate(
            {
                "uid": self.uid,
                "term": self.fence.term,
                "incarnation": machine.incarnation,
                "ready": machine.state not in (m.LeaderState.ABSENT, m.LeaderState.LOOKING),
                "version": machine.version.name if machine.version else "",
                "journal": state.value if state else "",
                "gate": gate.status if gate is not None else False,
                "decided": self._decided,
                "mode": self._ranks.mode,
                "ranks": [t.status() for t in self._ranks.held.values()],
                "pulls": self.exchange.hopes,
            }
        )

    async def readback(self) -> tuple[str, bool]:
        """(version, whether the engine's parameters are, byte for byte, the sealed replica)."""
        self._check_present()
        async with self._committing:
            version = self.machine.version
            if self.machine.state is not m.LeaderState.CURRENT or version is None:
                raise Refused("the engine serves no published version", reason="NotCurrent")
            return version.name, await serves(self._ranks, self._adapter, version)

    async def close(self) -> None:
        """End the workers; arenas and journal stay."""
        await self.exchange.close()
        await self._background.close()
        await self._ranks.close()
