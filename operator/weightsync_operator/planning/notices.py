"""Which changes of a status are worth a Kubernetes Event. Pure.

Progressing is not: it turns with every version.
"""

from dataclasses import dataclass
from typing import Literal

from weightsync import names
from weightsync.api.v1alpha1.status import Condition, WeightSyncStatus
from weightsync_operator.planning import reasons

# In the order in which causes come before effects; a reason is told once.
_GOOD = {names.SOURCES_READY: "True", names.PLAN_READY: "True", names.DEGRADED: "False", names.READY: "True"}


@dataclass(frozen=True, slots=True)
class Notice:
    """An event to be. action: what the operator did, in a word."""

    type: Literal["Normal", "Warning"]
    reason: str
    action: str
    note: str


def notices(before: WeightSyncStatus, after: WeightSyncStatus, coordinator: str) -> list[Notice]:
    """Events for what ``after``, which the API has accepted, says newly. coordinator: the pod's name."""
    found: list[Notice] = []
    if after.head is not None and (before.head is None or before.head.term != after.head.term):
        note = f"term {after.head.term}: the agent of pod {coordinator} coordinates"
        found.append(Notice("Normal", reasons.COORDINATOR_CHANGED, "Plan", note))
    for kind, good in _GOOD.items():
        condition, past = after.condition(kind), before.condition(kind)
        if condition is None or not _news(condition, past, good):
            continue
        # A missing source is told by SourcesReady, with its cause.
        if condition.reason == reasons.SOURCES_MISSING or condition.reason in {notice.reason for notice in found}:
            continue
        level: Literal["Normal", "Warning"] = "Normal" if condition.status == good else "Warning"
        found.append(Notice(level, condition.reason, f"Report{kind}", condition.message))
    return found


def _news(now: Condition, before: Condition | None, good: str) -> bool:
    if before is None:
        return now.status != good
    return (before.status, before.reason) != (now.status, now.reason)
