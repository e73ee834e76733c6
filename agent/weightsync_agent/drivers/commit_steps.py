"""Runs one step of a commit. In which order is engines/sequence.py's, what a failure means the leader's."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from weightsync.version import Version, torn_name
from weightsync_agent import failpoints
from weightsync_agent.drivers.rank_target import RankTarget
from weightsync_agent.engines.base import ArenaRef, EngineAdapter, PauseMode
from weightsync_agent.engines.sequence import Step
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import Journal, JournalRank, JournalState
from weightsync_agent.observability import metrics
from weightsync_agent.own_pod.base import OwnPod

FLUSH_SECONDS = 10.0  # for the engine to let its cache be flushed


@dataclass
class CommitContext:
    """One commit: what its steps need, and its times.

    pause_seconds: from the pause's call to the continue's answer.
    """

    version: Version
    label: str
    term: int
    coordinator: str
    incarnation: str
    pause_mode: PauseMode
    arenas: tuple[ArenaRef, ...]
    ranks: tuple[JournalRank, ...]
    paused_at: float = 0.0
    pause_seconds: float = 0.0
    apply_seconds: float = 0.0

    def journal(self, state: JournalState) -> Journal:
        """The record that says so."""
        return Journal(
            state=state,
            version=self.version,
            label=self.label,
            incarnation=self.incarnation,
            ranks=self.ranks,
            term=self.term,
            coordinator=self.coordinator,
        )


class StepRunner:
    """One step at a time; a failed call is a WeightSyncError in the engine's words."""

    def __init__(
        self,
        adapter: EngineAdapter,
        journal: StateFile[Journal],
        own_pod: OwnPod,
        targets: Mapping[int, RankTarget],
    ) -> None:
        self._adapter = adapter
        self._journal = journal
        self._own_pod = own_pod
        self._targets = targets

    async def run(self, step: Enum, context: CommitContext) -> None:
        """Return when what the step's value says has been reached."""
        name = context.version.name
        match step:
            case Step.JOURNAL_TORN:
                await asyncio.to_thread(self._journal.write, context.journal(JournalState.TORN))
            case Step.PAUSE:
                context.paused_at = time.monotonic()
                await self._adapter.pause(context.pause_mode)
            case Step.MARK_TORN:
                await self._adapter.set_version(torn_name(name))
            case Step.BEGIN:
                await self._adapter.begin()
            case Step.APPLY:
                await self._apply(context)
            case Step.END:
                await self._adapter.end()
            case Step.FLUSH:
                await self._adapter.flush(FLUSH_SECONDS)
            case Step.MARK_CURRENT:
                await self._adapter.set_version(name)
            case Step.JOURNAL_CURRENT:
                await asyncio.to_thread(self._journal.write, context.journal(JournalState.CURRENT))
            case Step.CONTINUE:
                await self._adapter.resume()
                context.pause_seconds = time.monotonic() - context.paused_at
                metrics.PAUSE_SECONDS.observe(context.pause_seconds)
            case Step.GATE:
                self._own_pod.set_gate(True, "Current")
                metrics.COMMITS.labels(outcome="Current").inc()
            case _:
                raise TypeError(f"no such step: {step!r}")

    async def _apply(self, context: CommitContext) -> None:
        began = time.monotonic()
        try:
            for target in self._targets.values():
                await target.apply_begins()
            await failpoints.reach("target", "applying")
            await self._adapter.apply(context.arenas)
        finally:
            for target in self._targets.values():
                await target.apply_ends()
        context.apply_seconds = time.monotonic() - began
        metrics.APPLY_SECONDS.observe(context.apply_seconds)
