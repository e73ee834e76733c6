"""When the term rises, and when the generation does. Pure.

The term fences: agents refuse an older one. It rises with the coordinator's life and never else, so that an operator
that restarts, or is replaced, disturbs no sync. The generation only tells plans apart.
"""

from weightsync.plan import Plan
from weightsync_operator.planning.coordinator import life


def next_term(previous: Plan | None, coordinator: str, nonce: str) -> int:
    """Term of a plan run by ``coordinator`` in the life ``nonce``; the first is 1.

    A previous plan whose sources were lost (its slices were deleted) has no life to compare with: the term rises,
    since a term too many costs one rerun, and one too few lets two lives of a coordinator share a fence.
    """
    if previous is None:
        return 1
    same = previous.coordinator == coordinator and life(coordinator, previous.sources) == nonce
    return previous.term if same else previous.term + 1


def next_generation(previous: Plan | None, *, changed: bool) -> int:
    """Generation of the plan that follows ``previous``; the first is 1."""
    if previous is None:
        return 1
    return previous.generation + changed
