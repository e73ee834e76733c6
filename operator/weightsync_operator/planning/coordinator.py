"""Which source agent coordinates, and which life of it. Pure."""

from collections.abc import Sequence

from weightsync.plan import Source


def choose(current: str, sources: Sequence[Source]) -> str:
    """Uid of the coordinating pod: the one that is, while it can feed; else the oldest. "" without sources."""
    if any(source.uid == current for source in sources):
        return current
    return sources[0].uid if sources else ""


def life(uid: str, sources: Sequence[Source]) -> str:
    """The nonce of the pod's lowest rank: a trainer that restarts in the same pod is another coordinator."""
    source = next((s for s in sources if s.uid == uid), None)
    if source is None or not source.ranks:
        return ""
    return min(source.ranks, key=lambda rank: rank.rank).nonce
