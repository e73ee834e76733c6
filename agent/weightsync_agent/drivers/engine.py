"""The agent beside an engine: watches its life, runs protocol.engine_leader.EngineLeader, owns its ranks' arenas."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import structlog

from weightsync.announcement import Announcement, TargetRank
from weightsync.arena import NO_GRANT, Header
from weightsync.convert.program import CopyProgram
from weightsync.errors import EngineError, InputError, Refused, WeightSyncError
from weightsync.version import Version
from weightsync.wire.v1 import (
    Accepted,
    AgentStatus,
    CommitAnswer,
    CommitRequest,
    Grant,
    GrantRequest,
    Receipts,
    ReceiptsAnswer,
    VoidRequest,
    Welcome,
)
from weightsync_agent import failpoints
from weightsync_agent.drivers.background import Background, in_thread
from weightsync_agent.drivers.commit_steps import CommitContext, StepRunner
from weightsync_agent.drivers.programs import Programs
from weightsync_agent.drivers.rank_target import RankTarget, StartWorker
from weightsync_agent.engines.base import ArenaRef, EngineAdapter, EngineInfo, PauseMode, description_problem
from weightsync_agent.engines.incarnation import engine_incarnation
from weightsync_agent.engines.sequence import commit_steps, refusal
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import (
    EngineSeen,
    Fresh,
    Journal,
    JournalState,
    Keep,
    PauseAndReseed,
    Reapply,
    Recovery,
    at_start,
)
from weightsync_agent.observability import metrics
from weightsync_agent.own_pod.base import OwnPod
from weightsync_agent.protocol import engine_leader as m
from weightsync_agent.protocol.fence import Fence
from weightsync_agent.volume import Volume

log = structlog.get_logger(__name__)

SILENT_AFTER = 2  # unanswered looks in a row: one may be a busy engine
NO_ROOT = "0" * 64


def _ended() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class EngineDriver:
    """One engine of one pod; every rank's arena is here."""

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
        start: StartWorker,
        memory_limit: int | None,
        probe_seconds: float,
        initial_gate: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.uid = uid
        self.machine = m.EngineLeader()
        self.targets: dict[int, RankTarget] = {}
        self.fence = Fence()
        self._address = address
        self._adapter = adapter
        self._volume = volume
        self._journal = journal
        self._own_pod = own_pod
        self._programs = programs
        self._start = start
        self._limit = memory_limit
        self._probe = probe_seconds
        self._initial_gate = initial_gate
        self._base = ""
        self._silent = 0
        self._pause_mode: PauseMode = "Abort"
        self._context: CommitContext | None = None
        self._answer: asyncio.Future[None] | None = None
        self._committing = asyncio.Lock()
        self._pausing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._background = Background("engine")

    # --- watching ---

    async def run(self) -> None:
        """Until cancelled: look at the engine each probe_seconds."""
        self._restore_fence()
        self._announce()
        while True:
            await self._look_once()
            await asyncio.sleep(self._probe)

    def _restore_fence(self) -> None:
        try:
            journal = self._journal.read()
        except InputError:
            log.exception("the journal cannot be read; the engine counts as torn")
            return
        if journal is not None:
            self.fence.raise_to(journal.term, journal.coordinator)

    async def _look_once(self) -> None:
        try:
            found = await self._adapter.weight_version()
        except EngineError as error:
            self._silent += 1
            if self._silent >= SILENT_AFTER:
                self._feed(m.Silent(), why=str(error))
            return
        self._silent = 0
        if self.machine.expects(found, self._base):
            self._feed(m.Answers())
        else:
            self._feed(m.LifeChanged(found))

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
            case m.AnswerCommit():
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
            try:
                event: m.Seen | m.LookFailed = await self._describe()
            except WeightSyncError as error:
                log.warning("the engine could not be looked at", why=str(error))
                event = m.LookFailed(str(error))
            except Exception as error:
                if not _ended():
                    self._feed(m.LookFailed(f"{type(error).__name__}: {error}"))
                raise
            if _ended():  # the standstill's own failure hid the cancellation
                raise asyncio.CancelledError
            self._feed(event)
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
        adapter = self._adapter
        adapter.forget()
        info = await adapter.info()
        if info.refusal:
            return m.Seen("", Fresh(), info.refusal, info.weight_version)
        journal, unreadable = await in_thread(self._read_journal)
        fresh = journal is None and not unreadable
        kept = (
            journal is not None
            and journal.state is JournalState.CURRENT
            and info.weight_version == journal.version.name
        )
        if fresh:
            await adapter.ready()
        elif not kept:
            await adapter.pause("Abort")  # it held a version once, and holds another or none now: it may not answer
        programs = await self._volume.wait_for_programs(len(info.ranks))
        await self._open(programs)
        torn = not fresh and not kept
        async with nullcontext() if torn else adapter.standstill():
            descriptions = await adapter.describe(info.ranks)
            problems = [description_problem(d, programs[d.rank].layout) for d in descriptions]
            problem = next((p for p in problems if p), "")
            if not problem:
                await adapter.pin([self._ref(rank, NO_GRANT, NO_ROOT) for rank in info.ranks])
        incarnation = engine_incarnation(descriptions)
        self._base = info.weight_version if fresh else ""
        recovery = await self._recovery(journal, unreadable, info, incarnation)
        return m.Seen(incarnation, recovery, problem, info.weight_version)

    def _read_journal(self) -> tuple[Journal | None, str]:
        try:
            return self._journal.read(), ""
        except InputError as error:
            return None, str(error)

    async def _recovery(self, journal: Journal | None, unreadable: str, info: EngineInfo, life: str) -> Recovery:
        if unreadable:
            return PauseAndReseed(unreadable)
        headers: dict[int, Header] = {rank: target.arena.header for rank, target in self.targets.items()}
        recovery = at_start(journal, headers, EngineSeen(info.weight_version, life))
        if journal is not None and isinstance(recovery, Keep | Reapply):
            equal = [
                await self.targets[r.rank].recover(r, journal.version)
                for r in journal.ranks
                if r.rank in self.targets
            ]
            if isinstance(recovery, Reapply) and not (all(equal) and len(equal) == len(self.targets)):
                return PauseAndReseed(f"{recovery.reason}, and the arena's bytes are not those of the journal")
        return recovery

    async def _open(self, programs: tuple[CopyProgram, ...]) -> None:
        for program in programs:
            known = self.targets.get(program.rank)
            if known is not None and known.program.digest == program.digest:
                continue
            if known is not None:
                del self.targets[program.rank]
                await known.close()
            await in_thread(self._programs.put, program)
            target = RankTarget(program, self._volume.arenas, self._start, self._limit)
            await target.open()
            self.targets[program.rank] = target

    def _ref(self, rank: int, grant: str, root: str) -> ArenaRef:
        target = self.targets[rank]
        return ArenaRef(
            rank=rank,
            arena=target.path,
            program=self._volume.rank_program(rank),
            layout=target.program.layout.digest,
            grant=grant,
            root=root,
        )

    def _announce(self) -> None:
        ready = self.machine.state not in (m.LeaderState.ABSENT, m.LeaderState.LOOKING, m.LeaderState.REFUSED)
        self._own_pod.announce(
            Announcement(
                address=self._address,
                incarnation=self.machine.incarnation,
                ready=ready,
                targets=tuple(
                    TargetRank(rank=rank, layout=t.program.layout.digest, program=t.program.digest)
                    for rank, t in sorted(self.targets.items())
                ),
                refused=self.machine.problem[:1024],
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
        while self.machine.state is m.LeaderState.TORN:
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
        self.fence.raise_to(request.term, request.coordinator)
        self._check_present()  # a look may last as long as the engine's start: nobody waits for that here
        await failpoints.reach("target", "decided")
        async with self._committing:
            if not self.machine.serves(request.version):
                await self._apply(request)
            await failpoints.reach("target", "committed")
            context = self._context
            return CommitAnswer(
                version=request.version.name,
                incarnation=self.machine.incarnation,
                pause_seconds=context.pause_seconds if context else 0.0,
                apply_seconds=context.apply_seconds if context else 0.0,
            )

    def _check_present(self) -> None:
        if self.machine.state in (m.LeaderState.ABSENT, m.LeaderState.LOOKING):
            raise Refused(f"the engine is not there: {self.machine.state.value}", reason="EngineSilent", status=503)

    async def _apply(self, request: CommitRequest) -> None:
        current = self.machine.version
        wanted = request.version
        if current is not None and (current.lineage == wanted.lineage and wanted.number < current.number):
            raise Refused(f"version {wanted.name} is older than the engine's {current.name}", reason="StaleVersion")
        capabilities = await self._adapter.capabilities()
        why = refusal(capabilities, request.strategy.pause_mode)
        if why:
            raise Refused(why, reason="PauseModeRefused", status=422)
        named = {rank.rank for rank in request.ranks}
        if named != set(self.targets):
            raise Refused(
                f"the commit names ranks {sorted(named)}, here are {sorted(self.targets)}", reason="RanksDiffer"
            )
        for target in self.targets.values():
            await target.seal(request)
        grants = tuple((rank.rank, rank.grant) for rank in request.ranks)
        await self._run_commit(request.version, grants, request.strategy.pause_mode, request.label)

    async def _reapply(self, version: Version, grants: tuple[tuple[int, str], ...]) -> None:
        """To be called with ``_committing`` held."""
        journal, _ = await in_thread(self._read_journal)
        try:
            await self._run_commit(version, grants, "Abort", journal.label if journal else "")
        except (Refused, EngineError) as error:
            log.warning("the version could not be reapplied; the engine waits for a sync", why=str(error))

    async def _run_commit(
        self, version: Version, grants: tuple[tuple[int, str], ...], pause_mode: PauseMode, label: str
    ) -> None:
        capabilities = await self._adapter.capabilities()
        mode: PauseMode = "Abort" if refusal(capabilities, pause_mode) else pause_mode
        event = m.CommitAsked(version, grants, commit_steps(capabilities, mode))
        if self._pausing is not None and not self._pausing.done():
            await asyncio.wait({self._pausing})  # a pause that arrives after our continue would stop a whole engine
        if not self.machine.takes(event):
            raise Refused(f"the engine is {self.machine.state.value}", reason="Busy", status=503)
        self._context = CommitContext(
            version=version,
            label=label,
            term=self.fence.term,
            coordinator=self.fence.coordinator,
            incarnation=self.machine.incarnation,
            pause_mode=mode,
            arenas=tuple(self._ref(rank, grant, version.root) for rank, grant in grants),
            ranks=tuple(self.targets[rank].journal_rank() for rank, _ in grants),
        )
        self._answer = asyncio.get_running_loop().create_future()
        self._feed(event)
        await self._answer

    async def _step(self, action: m.RunStep) -> None:
        context = self._context
        if context is None:
            raise TypeError("a step without a commit")
        runner = StepRunner(self._adapter, self._journal, self._own_pod, self.targets)
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

    def target(self, rank: int) -> RankTarget:
        """The rank's arena. Raises Refused where the engine has no such rank (yet)."""
        found = self.targets.get(rank)
        if found is None:
            raise Refused(f"rank {rank} is not here (yet)", reason="UnknownRank", status=404)
        return found

    async def grant(self, request: GrantRequest) -> Grant:
        """A coordinator's handshake with one rank."""
        self.fence.raise_to(request.term, request.coordinator)
        self._check_present()
        if self.machine.state is m.LeaderState.REFUSED:
            raise Refused(self.machine.problem, reason="EngineRefused", status=422)
        if self.machine.state is m.LeaderState.COMMITTING:
            raise Refused("the engine is being committed to", reason="Busy", status=503)
        grant = await self.target(request.rank).grant(request)
        await failpoints.reach("target", "handshake")
        return grant

    async def void(self, request: VoidRequest) -> Accepted:
        """Writers of a grant never got an order."""
        self.fence.check(request.term, request.coordinator)
        await self.target(request.rank).void(request)
        return Accepted()

    async def receipts(self, request: Receipts) -> ReceiptsAnswer:
        """A writer's buckets are terminal."""
        self.fence.check(request.term)
        return await self.target(request.rank).receipts(request)

    async def welcome(self, request: Welcome) -> Accepted:
        """Nothing was published yet, says the coordinator."""
        self.fence.raise_to(request.term, request.coordinator)
        self._feed(m.Welcomed(request.initial_gate == "Open"))
        return Accepted()

    def status(self) -> AgentStatus:
        """What the engine serves, as far as is known here."""
        machine = self.machine
        state = {m.LeaderState.CURRENT: JournalState.CURRENT, m.LeaderState.TORN: JournalState.TORN}.get(
            machine.state
        )
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
                "ranks": [t.status() for t in self.targets.values()],
            }
        )

    async def readback(self) -> tuple[str, bool]:
        """(version, whether the engine's parameters are, byte for byte, the sealed replica)."""
        self._check_present()
        async with self._committing:
            version = self.machine.version
            if self.machine.state is not m.LeaderState.CURRENT or version is None:
                raise Refused("the engine serves no published version", reason="NotCurrent")
            refs = []
            for rank, target in sorted(self.targets.items()):
                header = target.arena.header
                if header.version != version:
                    raise Refused(f"rank {rank}'s arena is being filled anew", reason="Busy", status=503)
                refs.append(self._ref(rank, header.grant, version.root))
            try:
                for target in self.targets.values():
                    await target.apply_begins()
                async with self._adapter.standstill():
                    found = await self._adapter.readback(refs)
            finally:
                for target in self.targets.values():
                    await target.apply_ends()
        return version.name, all(bool(rank.equal) for rank in found)

    async def close(self) -> None:
        """End the workers; arenas and journal stay."""
        await self._background.close()
        for target in self.targets.values():
            await target.close()
