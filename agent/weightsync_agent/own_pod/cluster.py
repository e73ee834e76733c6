"""The own pod in a cluster: server-side applies to pods/status, which is the only right that the agent needs."""

import asyncio
import time

import structlog

from weightsync import names
from weightsync.announcement import Announcement
from weightsync.report import Report
from weightsync_agent import lasting
from weightsync_agent.observability import metrics
from weightsync_agent.own_pod.api import Api
from weightsync_agent.own_pod.base import Gate, Identity, OwnPod
from weightsync_agent.own_pod.status import (
    Clock,
    Said,
    Seen,
    agent_body,
    identity_body,
    read_pod,
    report_body,
    text,
    turned,
    utc_now,
)
from weightsync_agent.own_pod.writer import Writer

log = structlog.get_logger(__name__)

# Labels that were read so long ago are read anew when somebody asks: a pod may be given others while it runs, and by
# them a WeightSync selects it.
LABELS_SECONDS = 10.0
REPORT_SECONDS = 2.0  # at most one report in so long: no API write per engine and step
READER = "weightsync-reader"  # owns no field


class KubernetesOwnPod(OwnPod):
    """Says what the agent is through its pod, by two writers (see status.py)."""

    def __init__(
        self,
        api: Api,
        pod: Identity,
        *,
        clock: Clock = utc_now,
        report_seconds: float = REPORT_SECONDS,
        labels_seconds: float = LABELS_SECONDS,
    ) -> None:
        self._api = api
        self._pod = pod
        self._clock = clock
        self._path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        self._announcement: Announcement | None = None
        self._gate: Gate | None = None  # as set in this life
        self._report: Report | None = None
        self._seen: asyncio.Future[Seen] = asyncio.get_running_loop().create_future()  # at the first look
        self._labels: dict[str, str] = {}
        self._labels_at = 0.0  # when they were read
        self._labels_seconds = labels_seconds
        self._asking = asyncio.Lock()  # who asks while they are read takes what comes
        self._written: Said | None = None  # what the pod says, as far as answers tell
        self._unsure = False  # an answer is missing: it may say something else
        self._agent = Writer[Said](f"announcement and gate of pod {pod.name}", self._write_said)
        self._reporter = Writer[str](f"report of pod {pod.name}", self._write_report, report_seconds)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def announcement(self) -> Announcement | None:
        """What was last announced."""
        return self._announcement

    @property
    def gate(self) -> Gate | None:
        """The gate as last set; before that, as the pod had it."""
        return self._gate or (self._seen.result().said.gate if self._seen.done() else None)

    @property
    def last_report(self) -> Report | None:
        """What was last reported."""
        return self._report

    @property
    def problem(self) -> str:
        """Why what was said is not written yet; empty where it is."""
        return self._agent.problem or self._reporter.problem

    def announce(self, announcement: Announcement) -> None:
        """Say what the agent is."""
        self._announcement = announcement
        self._say()

    def set_gate(self, status: bool, reason: str, message: str = "") -> None:
        """Open or close the readiness gate."""
        self._gate = turned(self._gate, Gate(status, reason, message), self._clock())
        metrics.GATE.set(status)
        self._say()

    def report(self, report: Report) -> None:
        """Write a coordinator's report, the newest every REPORT_SECONDS at most."""
        self._report = report
        self._reporter.want(text(report))

    async def labels(self) -> dict[str, str]:
        """The pod's labels, at most LABELS_SECONDS old. Raises WeightSyncError where they cannot be read anew."""
        await asyncio.shield(self._seen)
        async with self._asking:
            if time.monotonic() - self._labels_at > self._labels_seconds:
                await self._read()
        return self._labels

    async def settled(self) -> None:
        """Return once everything said is written, or refused for good."""
        await self._agent.settled()
        await self._reporter.settled()

    async def start(self) -> None:
        """Begin to write, with a look at what the pod already says."""
        self._say()
        self._tasks = [lasting.begin(writer.what, writer.run()) for writer in (self._agent, self._reporter)]

    async def stop(self, seconds: float = 2.0) -> None:
        """Write what is still to be written, for so long at most, and end."""
        try:
            await asyncio.wait_for(self.settled(), seconds)
        except TimeoutError:
            log.warning("ended with something unsaid", pod=self._pod.name, problem=self.problem)
        await lasting.end(self._tasks)

    def _say(self) -> None:
        self._agent.want(Said(text(self._announcement) if self._announcement else None, self._gate))

    async def _write_said(self, said: Said) -> None:
        seen = await self._look()
        before = self._written or seen.said
        whole = _whole(before, said)
        if whole != before or self._unsure:
            self._unsure = True
            await self._api.apply(self._path, agent_body(self._pod, whole), names.MANAGER_AGENT)
            self._unsure = False
        self._written = whole

    async def _write_report(self, report: str) -> None:
        await self._api.apply(self._path, report_body(self._pod, report), names.MANAGER_REPORT)

    async def _look(self) -> Seen:
        """What the pod says, read once: an apply that leaves a gate of the agent's last life out would remove it.

        An apply of nothing, as a trial, answers with the pod: so the agent needs no right to read pods.
        """
        if not self._seen.done():
            self._seen.set_result(await self._read())
        return self._seen.result()

    async def _read(self) -> Seen:
        seen = read_pod(await self._api.apply(self._path, identity_body(self._pod), READER, dry_run=True))
        self._labels, self._labels_at = seen.labels, time.monotonic()
        return seen


def _whole(before: Said, said: Said) -> Said:
    """All that the agent says now: what it left unsaid in this life stands as it was."""
    gate = before.gate
    if said.gate is not None:
        same = gate is not None and gate.status == said.gate.status and gate.since
        gate = said.gate._replace(since=gate.since) if gate and same else said.gate
    return Said(before.announcement if said.announcement is None else said.announcement, gate)
