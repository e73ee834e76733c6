"""Everything that conditions and status are made from, in one value. Pure."""

from dataclasses import dataclass
from typing import Final

from weightsync.plan import Plan
from weightsync.report import Report
from weightsync_operator.planning.membership import Membership
from weightsync_operator.planning.ownership import Owned
from weightsync_operator.planning.sources import Sources

# Of a report that cannot be read: no coordinator has it, so it stands for that one report, whatever the plan's term.
UNREADABLE: Final = -1


@dataclass(frozen=True, slots=True)
class Facts:
    """One pass's findings about one WeightSync.

    generation: of the spec; rollout: its selector as text; plan: the one in force; report: the coordinator's, None
    where it is of another term; ordered: what keeps workloads from making engines' pods, in sentences.
    """

    generation: int
    suspend: bool
    rollout: str
    owned: Owned
    sources: Sources
    membership: Membership
    plan: Plan | None
    report: Report | None
    ordered: tuple[str, ...] = ()

    @property
    def failed(self) -> int:
        """Engines that are refused, or that the coordinator gave up for now."""
        return len(self.membership.refused) + (self.report.failed if self.report else 0)

    @property
    def joining(self) -> int:
        """Engines that start or receive their first version; all of the plan, before the coordinator has reported."""
        planned = self.report.joining if self.report else len(self.membership.members)
        return planned + len(self.membership.waiting)


def report_in_force(owned: Owned, plan: Plan | None) -> Report | None:
    """The report of the plan's coordinator, if it is about the plan's term: another life says nothing of this one.

    One that cannot be read is in force, too: that is all that is known of this term.
    """
    if plan is None:
        return None
    report = next((pod.report for pod in owned.trainers if pod.uid == plan.coordinator), None)
    return report if report is not None and report.term in (plan.term, UNREADABLE) else None
