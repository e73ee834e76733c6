"""Findings of a pass for tests of conditions and status."""

from collections.abc import Sequence

from tests.build.pods import gathered, judged, planned
from weightsync.report import Report
from weightsync_operator.planning.compose import left_out
from weightsync_operator.planning.facts import Facts
from weightsync_operator.planning.ownership import Contest, Owned
from weightsync_operator.planning.pods import Pod

NOW = "2026-01-01T00:00:00Z"


def facts(
    trainers: Sequence[Pod],
    engines: Sequence[Pod],
    *,
    suspend: bool = False,
    contests: tuple[Contest, ...] = (),
    both: tuple[str, ...] = (),
    report: Report | None = None,
) -> Facts:
    """What a pass over those pods finds."""
    plan = planned(trainers, engines)
    owned = Owned(tuple(trainers), tuple(engines), contests, both)
    sources, found = gathered(trainers), judged(engines)
    found = found.without(left_out(found.members, plan))
    return Facts(1, suspend, "app=rollout", owned, sources, found, plan, report)
