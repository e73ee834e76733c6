"""Runs one step of a commit. In which order is engines/sequence.py's, what a failure means the leader's."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import structlog

from weightsync.version import Version, torn_name
from weightsync_agent import failpoints
from weightsync_agent.drivers.ranks import EngineRanks
from weightsync_agent.engines.base import ArenaRef, EngineAdapter, PauseMode
from weightsync_agent.engines.errors import engine_error
from weightsync_agent.engines.sequence import Step
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import Journal, JournalRank, JournalState
from weightsync_agent.observability import metrics
from weightsync_agent.own_pod.base import OwnPod
from weightsync_agent.protocol.engine_leader import ANOTHER_LIFE, NOT_CERTIFIED

log = structlog.get_logger(__name__)

FLUSH_SECONDS = 10.0  # for the engine to let its cache be flushed


@dataclass
class CommitContext:
    """One commit: what its steps need, and its times.

    torn: what the journal says meanwhile, where that is not the version itself; pause_seconds: from the pause's call
    to the continue's answer; step_seconds: of each step, when it last ran.
    """

    version: Version
    label: str
    term: int
    coordinator: str
    incarnation: str
    pause_mode: PauseMode
    arenas: tuple[ArenaRef, ...]
    ranks: tuple[JournalRank, ...]
    programs: Mapping[str, str] = field(default_factory=dict)
    torn: Journal | None = None
    paused_at: float = 0.0
    pause_seconds: float = 0.0
    apply_seconds: float = 0.0
    step_seconds: dict[str, float] = field(default_factory=dict)

    def journal(self, state: JournalState) -> Journal:
        """The record that says so."""
        if state is JournalState.TORN and self.torn is not None:
            return self.torn
        return Journal(
            state=state,
            version=self.version,
            label=self.label,
            incarnation=self.incarnation,
            ranks=self.ranks,
            term=self.term,
            coordinator=self.coordinator,
            programs=dict(self.programs),
        )


async def check_readback(adapter: EngineAdapter, arenas: Sequence[ArenaRef]) -> None:
    """Raises EngineError, reason NotCertified, that names the first parameter which is not what was applied."""
    found = await adapter.readback(arenas)
    differing = [rank for rank in found if not rank.equal]
    if differing:
        sentence = "; ".join(f"rank {rank.rank}: {rank.difference or 'it was not compared'}" for rank in differing)
        raise engine_error(
            NOT_CERTIFIED,
            f"what was applied does not stand in the engine: {sentence}. Parameters that are repacked after loading, "
            "moved at run time or merged with others cannot be synced",
            retryable=False,
        )


class StepRunner:
    """One step at a time; a failed call is a WeightSyncError in the engine's words."""

    def __init__(
        self,
        adapter: EngineAdapter,
        journal: StateFile[Journal],
        own_pod: OwnPod,
        ranks: EngineRanks,
    ) -> None:
        self._adapter = adapter
        self._journal = journal
        self._own_pod = own_pod
        self._ranks = ranks

    async def run(self, step: Enum, context: CommitContext) -> None:
        """Return when what the step's value says has been reached."""
        began = time.monotonic()
        await self._run(step, context)
        context.step_seconds[step.name] = round(time.monotonic() - began, 4)
        if step is Step.CONTINUE:
            log.info(
                "committed",
                version=context.version.name,
                pause=round(context.pause_seconds, 4),
                **context.step_seconds,
            )

    async def _run(self, step: Enum, context: CommitContext) -> None:
        name = context.version.name
        match step:
            case Step.JOURNAL_TORN | Step.JOURNAL_CURRENT:
                state = JournalState.TORN if step is Step.JOURNAL_TORN else JournalState.CURRENT
                await asyncio.to_thread(self._journal.write, context.journal(state))
            case Step.PAUSE:
                context.paused_at = context.paused_at or time.monotonic()
                await self._adapter.pause(context.pause_mode)
            case Step.MARK_TORN:
                await self._adapter.set_version(torn_name(name))
            case Step.MARK_CURRENT:
                await self._confirm(torn_name(name))  # nothing stands in a process that has taken its place since
                await self._adapter.set_version(name)
            case Step.BEGIN | Step.END:
                await (self._adapter.begin() if step is Step.BEGIN else self._adapter.end())
            case Step.APPLY:
                await self._apply(context)
            case Step.SAME_LIFE | Step.READ_BACK:
                await self._look(step, context)
            case Step.FLUSH:
                await self._adapter.flush(FLUSH_SECONDS)
            case Step.CONTINUE:
                await self._adapter.resume()
                context.pause_seconds = time.monotonic() - context.paused_at
                metrics.PAUSE_SECONDS.observe(context.pause_seconds)
            case Step.CONFIRM:
                await self._confirm(name)
            case Step.GATE:
                self._own_pod.set_gate(True, "Current")
                metrics.COMMITS.labels(outcome="Current").inc()
            case _:
                raise TypeError(f"no such step: {step!r}")

    async def _confirm(self, name: str) -> None:
        found = await self._adapter.weight_version()
        if found != name:
            raise engine_error(
                ANOTHER_LIFE,
                f"the engine was left as version {name}, and what answers now calls itself {found!r}: its process "
                "was replaced in the commit",
            )

    async def _look(self, step: Enum, context: CommitContext) -> None:
        for rank in self._ranks.direct.values():
            await (rank.check_life() if step is Step.SAME_LIFE else rank.read_back())
        if step is Step.READ_BACK and not self._ranks.direct:
            await check_readback(self._adapter, context.arenas)

    async def _apply(self, context: CommitContext) -> None:
        began = time.monotonic()
        # On its own account: the commit may have been given up while the engine still copies.
        async with self._ranks.kept((ref.rank, ref.grant) for ref in context.arenas):
            await failpoints.reach("target", "applying")
            for rank in await self._adapter.apply(context.arenas):
                log.info("applied", **rank.model_dump())
        context.apply_seconds = time.monotonic() - began
        metrics.APPLY_SECONDS.observe(context.apply_seconds)
