"""What a status says where a pass cannot be finished, and trying again does not help. Pure."""

from weightsync import names
from weightsync.api.v1alpha1.status import MAX_MESSAGE, Condition, WeightSyncStatus
from weightsync_operator.planning import reasons
from weightsync_operator.planning.conditions import TYPES, since


def refused(before: WeightSyncStatus, generation: int, why: str, now: str) -> WeightSyncStatus:
    """``before``, but for Ready and PlanReady. generation: of the spec; why: a sentence; now: RFC 3339.

    Its own observedGeneration stays: the plan in force is not yet the spec's.
    """
    kept = "; the last plan stays in force" if before.head is not None else ""
    message = f"{why[: MAX_MESSAGE - len(kept)]}{kept}"
    known = {condition.type: condition for condition in before.conditions}
    said = {
        kind: Condition(
            type=kind,
            status="False",
            observed_generation=generation,
            last_transition_time=since(known.get(kind), "False", now),
            reason=reasons.PLAN_REFUSED,
            message=message,
        )
        for kind in (names.READY, names.PLAN_READY)
    }
    # Only our own: what we apply is ours from then on.
    ours = {kind: condition for kind, condition in known.items() if kind in TYPES} | said
    return before.model_copy(update={"conditions": tuple(ours[kind] for kind in TYPES if kind in ours)})
