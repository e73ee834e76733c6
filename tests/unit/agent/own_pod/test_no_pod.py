"""Without a pod the agent keeps what it says."""

from datetime import UTC, datetime

from weightsync.announcement import Announcement
from weightsync.report import Report
from weightsync_agent.own_pod.base import Gate
from weightsync_agent.own_pod.no_pod import NoPod


async def test_the_last_values_are_kept() -> None:
    """Announcement, gate with its time, and report, each as last said; no labels, nothing to wait for."""
    pod = NoPod(lambda: datetime(2026, 5, 1, tzinfo=UTC))
    await pod.start()
    assert (pod.announcement, pod.gate, pod.last_report, await pod.labels()) == (None, None, None, {})
    for address in ("a:1", "b:2"):
        pod.announce(Announcement(address=address))
    pod.set_gate(True, "Current", "m")
    pod.report(Report(term=3))
    await pod.settled()
    assert pod.announcement == Announcement(address="b:2")
    assert pod.gate == Gate(True, "Current", "m", "2026-05-01T00:00:00Z")
    assert pod.last_report == Report(term=3)
    await pod.stop()
