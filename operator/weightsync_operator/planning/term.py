"""When the term rises, and when the generation does. Pure.

The term fences: agents refuse an older one. It rises with the coordinator's life and never else, so that an operator
that restarts, or is replaced, disturbs no sync. The generation only tells plans apart.

Agents remember the highest term that they obeyed for as long as their pods live, which may be longer than the
WeightSync lives that brought it. So terms are taken from a clock: one that is made anew begins above all that its
former self reached, and whoever still coordinates for that one is refused, as in any other change of term. The
same holds where a pod comes from another WeightSync, or a status was lost.
"""

from weightsync.plan import Plan
from weightsync_operator.planning.coordinator import life


def next_term(previous: Plan | None, coordinator: str, nonce: str, now: int) -> int:
    """Term of a plan run by ``coordinator`` in the life ``nonce``; one that begins is ``now`` at least.

    now: milliseconds since the epoch. Where that clock went back the term still rises by one.

    A previous plan whose sources were lost (its slices were deleted) has no life to compare with: the term rises,
    since a term too many costs one rerun, and one too few lets two lives of a coordinator share a fence.
    """
    if previous is None:
        return max(1, now)
    same = previous.coordinator == coordinator and life(coordinator, previous.sources) == nonce
    return previous.term if same else max(previous.term + 1, now)


def next_generation(previous: Plan | None, *, changed: bool) -> int:
    """Generation of the plan that follows ``previous``; the first is 1."""
    if previous is None:
        return 1
    return previous.generation + changed
