"""Conditions as ordered chains of checks: the first check that finds something gives reason and message. Pure.

    SourcesReady  every trainer rank is there and they fit together
    PlanReady     a plan in force serves at least one engine and follows the pods that are there
    Degraded      some engine is not served as the user asked, though others are
    Progressing   a version is on its way, or engines are starting
    Ready         a version that is published now reaches the engines
    RDMAReady     every pod that takes part has an RDMA device (planning/rdma.py: Unknown where nobody asks)

A condition clears itself: each pass asks all the checks anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weightsync import names
from weightsync.api.v1alpha1.status import MAX_MESSAGE, Condition
from weightsync_operator.planning import checks, rdma, reasons
from weightsync_operator.planning.checks import Check
from weightsync_operator.planning.facts import Facts
from weightsync_operator.planning.sources import Finding


@dataclass(frozen=True, slots=True)
class Chain:
    """found: the condition's status where a check finds something; otherwise: what it says where none does."""

    type: str
    checks: Sequence[Check]
    found: bool
    otherwise: Callable[[Facts], Finding]


def conditions(facts: Facts, previous: Sequence[Condition], now: str) -> tuple[Condition, ...]:
    """All conditions. now: RFC 3339; the time of a transition stays while the status stays."""
    before = {condition.type: condition for condition in previous}
    said = [(chain.type, *_asked(chain, facts)) for chain in CHAINS]
    status, finding = rdma.ready(facts)
    said.append((names.RDMA_READY, status, finding.reason, finding.message))
    return tuple(
        Condition(
            type=kind,
            status=status,
            observed_generation=facts.generation,
            last_transition_time=since(before.get(kind), status, now),
            reason=reason,
            message=message[:MAX_MESSAGE],
        )
        for kind, status, reason, message in said
    )


def since(before: Condition | None, status: str, now: str) -> str:
    """When the condition turned to that status."""
    return before.last_transition_time if before is not None and before.status == status else now


def _asked(chain: Chain, facts: Facts) -> tuple[rdma.Status, str, str]:
    """Status, reason and message."""
    findings = [finding for check in chain.checks if (finding := check(facts)) is not None]
    first = findings[0] if findings else chain.otherwise(facts)
    truth = chain.found if findings else not chain.found
    # Of Degraded's findings several may need someone to act; the others' reasons are not lost.
    more = (
        sorted({finding.reason for finding in findings[1:]} - {first.reason}) if chain.type == names.DEGRADED else []
    )
    message = first.message + (f" (also: {', '.join(more)})" if more else "")
    return "True" if truth else "False", first.reason, message


PLAN_CHECKS: tuple[Check, ...] = (
    checks.sources_missing,
    checks.no_targets,
    checks.ordered_startup,
    checks.targets_not_ready,
)
DEGRADED_CHECKS: tuple[Check, ...] = (
    checks.matched_twice,
    checks.refused(reasons.LAYOUTS_DIFFER),
    checks.refused(reasons.ENGINE_INCONSISTENT),
    checks.refused(reasons.ORDERED_STARTUP),
    checks.pods_held_back,
    checks.refused(reasons.SOURCES_FULL),
    checks.refused(reasons.ENGINE_REFUSED),
    checks.refused(reasons.ANNOUNCEMENT_UNREADABLE),
    checks.engines_failed,
    checks.engines_behind,
)

CHAINS = (
    Chain(
        names.READY,
        (checks.suspended, checks.sources_wrong, *PLAN_CHECKS, checks.sync_failed),
        found=False,
        otherwise=checks.in_place,
    ),
    Chain(names.SOURCES_READY, (checks.sources_wrong,), found=False, otherwise=checks.sources_announced),
    Chain(names.PLAN_READY, PLAN_CHECKS, found=False, otherwise=checks.planned),
    Chain(names.PROGRESSING, (checks.syncing, checks.engines_joining), found=True, otherwise=checks.idle),
    Chain(names.DEGRADED, DEGRADED_CHECKS, found=True, otherwise=checks.all_served),
)

TYPES = (*(chain.type for chain in CHAINS), names.RDMA_READY)  # in the order in which a status has them
