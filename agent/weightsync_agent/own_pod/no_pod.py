"""Without Kubernetes there is no pod: what is said is kept for GET /v1/announcement. No I/O."""

from weightsync.announcement import Announcement
from weightsync.report import Report
from weightsync_agent.observability import metrics
from weightsync_agent.own_pod.base import Gate, OwnPod
from weightsync_agent.own_pod.status import Clock, turned, utc_now


class NoPod(OwnPod):
    """Keeps the last values."""

    def __init__(self, clock: Clock = utc_now) -> None:
        self._clock = clock
        self._announcement: Announcement | None = None
        self._gate: Gate | None = None
        self._report: Report | None = None

    @property
    def announcement(self) -> Announcement | None:
        """What was last announced."""
        return self._announcement

    @property
    def gate(self) -> Gate | None:
        """The gate as last set."""
        return self._gate

    @property
    def last_report(self) -> Report | None:
        """What was last reported."""
        return self._report

    def announce(self, announcement: Announcement) -> None:
        """Keep it."""
        self._announcement = announcement

    def set_gate(self, status: bool, reason: str, message: str = "") -> None:
        """Keep it, and since when."""
        self._gate = turned(self._gate, Gate(status, reason, message), self._clock())
        metrics.GATE.set(status)

    def report(self, report: Report) -> None:
        """Keep it."""
        self._report = report

    async def labels(self) -> dict[str, str]:
        """None: what selects by labels is not there either."""
        return {}

    async def settled(self) -> None:
        """Nothing is written."""

    async def start(self) -> None:
        """Nothing to begin."""

    async def stop(self, seconds: float = 2.0) -> None:
        """Nothing to end."""
