"""The status of a WeightSync: head, counts, the worst, the last sync. Pure."""

from collections.abc import Sequence

from weightsync.api.v1alpha1.status import Counts, Head, LastSync, Offender, WeightSyncStatus
from weightsync.bounds import LARGEST
from weightsync.plan import Plan
from weightsync.report import WORST
from weightsync.report import LastSync as Reported
from weightsync_operator.planning import reasons
from weightsync_operator.planning.conditions import conditions
from weightsync_operator.planning.facts import Facts
from weightsync_operator.planning.layouts import Outsider
from weightsync_operator.planning.slicing import Slice


def build(facts: Facts, slices: Sequence[Slice], previous: WeightSyncStatus, now: str) -> WeightSyncStatus:
    """The status as it should be. slices: of the plan in force; now: RFC 3339.

    What was decided stays true when the coordinator changes: version, label and last sync are kept until the new one
    reports its own. Counts are of now, so they are not kept.
    """
    report = facts.report
    return WeightSyncStatus(
        observed_generation=facts.generation,
        head=head(facts.plan, slices) if facts.plan else None,
        version=(report.version if report else "") or previous.version,
        label=report.label if report and report.version else previous.label,
        counts=Counts(
            matched=facts.membership.matched,
            current=report.current if report else 0,
            behind=report.behind if report else 0,
            joining=facts.joining,
            failed=facts.failed,
        ),
        last_sync=last_sync(report.last_sync) if report and report.last_sync else previous.last_sync,
        worst=worst(facts),
        conditions=conditions(facts, previous.conditions, now),
    )


def head(plan: Plan, slices: Sequence[Slice]) -> Head:
    """What agents read first."""
    return Head(
        term=plan.term,
        generation=plan.generation,
        coordinator=plan.coordinator,
        slices=tuple(part.name for part in slices),
    )


def worst(facts: Facts) -> tuple[Offender, ...]:
    """Those that somebody must act for come first, then those that the coordinator named, then parts of engines."""
    refused = [_outside(outsider) for outsider in facts.membership.refused[:WORST]]
    parts = [_outside(o) for o in facts.membership.waiting if o.reason == reasons.ENGINE_INCOMPLETE]
    named = facts.report.worst if facts.report else ()
    reported = [Offender(engine=o.engine[:253], reason=o.reason[:128], message=o.message) for o in named]
    return tuple((refused + reported + parts)[:WORST])


def _outside(outsider: Outsider) -> Offender:
    return Offender(engine=outsider.engine[:253], reason=outsider.reason, message=outsider.message[:512])


def last_sync(reported: Reported) -> LastSync:
    """The report's figures as whole numbers, within what the API takes for one."""
    rate = min(reported.nbytes / reported.seconds, LARGEST) if reported.seconds > 0 else 0.0
    return LastSync(
        version=reported.version,
        label=reported.label,
        engines=reported.engines,
        bytes=reported.nbytes,
        duration_milliseconds=round(reported.seconds * 1000),
        pause_p50_milliseconds=round(reported.pause_seconds_p50 * 1000),
        pause_max_milliseconds=round(reported.pause_seconds_max * 1000),
        bytes_per_second=round(rate),
        rdma_routes=reported.routes.get("rdma", 0),
        tcp_routes=reported.routes.get("tcp", 0),
    )
