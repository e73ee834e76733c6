"""Terms on disk: the highest that a source rank or an engine has seen, and the last that an agent took itself.

An agent that forgot what it has seen would, after a restart, obey a coordinator that has been replaced.
"""

from pathlib import Path

from weightsync.plan import Plan
from weightsync_agent.drivers.kept import Kept
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import TermSeen
from weightsync_agent.protocol.fence import Fence


class KeptTerm:
    """One file in the volume. name: the source rank's number, or "engine"."""

    def __init__(self, directory: Path, name: str) -> None:
        self._kept = Kept(StateFile(directory / f"term-{name}", TermSeen), f"the term that {name} obeys")

    def fence(self) -> Fence:
        """As it was left; a file that cannot be read counts as none, for a fence that is too high obeys nobody."""
        kept = self._kept.value
        return Fence(kept.term, kept.coordinator) if kept is not None else Fence()

    def keep(self, fence: Fence) -> None:
        """Write it where it has risen, before a request of it is answered: one fsync with each coordinator."""
        if fence.term:
            self._kept.keep(TermSeen(term=fence.term, coordinator=fence.coordinator))


class OwnTerms:
    """The terms of a coordinator that a plan file names: nobody gives it one, so it takes them from its clock.

    Each is above all that this agent took, and above those of whoever coordinated before, also where the volume that
    kept them is gone: as long as clocks differ by less than coordinators last.
    """

    def __init__(self, directory: Path, uid: str) -> None:
        self._kept = Kept(StateFile(directory / "term-own", TermSeen), "the last term that was taken")
        self._uid = uid
        self._term = 0  # 0: it does not coordinate

    def put_into(self, plan: Plan, now: int) -> Plan:
        """The plan under our term. One begins with the agent, and when it is named anew after another.

        now: milliseconds since the epoch.
        """
        if plan.coordinator != self._uid:
            self._term = 0
        elif not self._term:
            last = self._kept.value.term if self._kept.value is not None else 0
            self._term = max(last + 1, now)
            self._kept.keep(TermSeen(term=self._term, coordinator=self._uid))
        return plan.model_copy(update={"term": self._term})
