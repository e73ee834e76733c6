"""The checks that conditions are chained from: each finds something to say, with pods by name, or nothing. Pure."""

import re
from collections.abc import Callable, Iterable

from weightsync_operator.planning import reasons
from weightsync_operator.planning.facts import Facts
from weightsync_operator.planning.ownership import Contest
from weightsync_operator.planning.pods import count, listing
from weightsync_operator.planning.sources import Finding

Check = Callable[[Facts], Finding | None]

_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,127}")


def sources_wrong(facts: Facts) -> Finding | None:
    """The gravest thing that is wrong on the trainer's side."""
    return facts.sources.findings[0] if facts.sources.findings else None


def sources_announced(facts: Facts) -> Finding:
    """What the trainer's side is."""
    ranks = sum(len(pod.ranks) for pod in facts.sources.pods)
    pods = listing(pod.pod for pod in facts.sources.pods)
    return Finding(
        reasons.SOURCES_ANNOUNCED, f"{count(ranks, 'rank')} in {count(facts.sources.stages, 'stage')}, in pods {pods}"
    )


def sources_missing(facts: Facts) -> Finding | None:
    """Without sources for every stage the last plan stays."""
    if facts.sources.usable:
        return None
    plan = facts.plan
    kept = f"; the last plan, of {count(len(plan.engines), 'engine')}, stays in force" if plan else ""
    return Finding(reasons.SOURCES_MISSING, f"no plan can be made: {facts.sources.findings[0].message}{kept}")


def no_targets(facts: Facts) -> Finding | None:
    """Sources without targets."""
    if facts.membership.matched:
        return None
    trainers = listing(pod.pod for pod in facts.sources.pods)
    if facts.owned.absent_rollouts:
        return Finding(
            reasons.NO_TARGETS,
            f"trainer pods {trainers} are ready, but no pod of the rollout selector {facts.rollout} can take part: "
            f"{listing(facts.owned.absent_rollouts)}",
        )
    return Finding(
        reasons.NO_TARGETS,
        f"trainer pods {trainers} are ready, but no pod matches the rollout selector {facts.rollout}: label engine "
        "pods so, or change spec.rollout.selector",
    )


def ordered_startup(facts: Facts) -> Finding | None:
    """Engines wait for pods that wait for them."""
    found = [o.message for o in facts.membership.refused if o.reason == reasons.ORDERED_STARTUP]
    return Finding(reasons.ORDERED_STARTUP, listing(found, 3)) if found and not facts.membership.members else None


def pods_held_back(facts: Facts) -> Finding | None:
    """A workload waits for a pod that waits for the first version."""
    return Finding(reasons.ORDERED_STARTUP, listing(facts.ordered, 3)) if facts.ordered else None


def targets_not_ready(facts: Facts) -> Finding | None:
    """Engines are there, none can be served."""
    if facts.membership.members:
        return None
    outsiders = (*facts.membership.refused, *facts.membership.waiting)
    return Finding(reasons.TARGETS_NOT_READY, f"no engine can be served: {listing(o.message for o in outsiders)}")


def planned(facts: Facts) -> Finding:
    """What is planned."""
    ranks = sum(len(member.ranks) for member in facts.membership.members)
    return Finding(
        reasons.PLANNED,
        f"{count(len(facts.membership.members), 'engine')} with {count(ranks, 'rank')} served from "
        f"{count(facts.sources.stages, 'stage')}",
    )


def matched_twice(facts: Facts) -> Finding | None:
    """Another WeightSync, or both selectors, match a pod."""
    owned = facts.owned
    kept, lost = [c for c in owned.contests if c.ours], [c for c in owned.contests if not c.ours]
    said = []
    if lost:
        said.append(
            f"pods {listing(c.pod for c in lost)} belong to the older WeightSync {listing(_others(lost))}: narrow "
            "this one's selectors"
        )
    if kept:
        said.append(
            f"pods {listing(c.pod for c in kept)} are matched by the younger WeightSync {listing(_others(kept))} too "
            "and stay with this one: narrow the younger's selectors"
        )
    if owned.both:
        said.append(
            f"pods {listing(owned.both)} match both selectors of this WeightSync and count as trainers: narrow "
            "spec.rollout.selector"
        )
    return Finding(reasons.PODS_MATCHED_TWICE, "; ".join(said)) if said else None


def _others(contests: Iterable[Contest]) -> list[str]:
    return sorted({contest.other for contest in contests})


def refused(reason: str) -> Check:
    """Engines that are refused for that reason."""

    def check(facts: Facts) -> Finding | None:
        found = [outsider.message for outsider in facts.membership.refused if outsider.reason == reason]
        return Finding(reason, listing(found, 3)) if found else None

    return check


def engines_failed(facts: Facts) -> Finding | None:
    """Engines that the coordinator could not bring to a version."""
    return _from_report(facts, facts.report.failed if facts.report else 0, reasons.ENGINES_FAILED, "failed")


def engines_behind(facts: Facts) -> Finding | None:
    """Engines that are being repaired."""
    return _from_report(facts, facts.report.behind if facts.report else 0, reasons.ENGINES_BEHIND, "are behind")


def _from_report(facts: Facts, number: int, reason: str, verb: str) -> Finding | None:
    if facts.report is None or not number:
        return None
    worst = [f"{o.engine} ({o.reason}: {o.message})" for o in facts.report.worst]
    named = f": {listing(worst, 3)}" if worst else ""
    return Finding(reason, f"{number} of {count(len(facts.membership.members), 'engine')} {verb}{named}")


def all_served(facts: Facts) -> Finding:
    """Nothing is wrong with any engine."""
    return Finding(
        reasons.ALL_SERVED, f"of {count(facts.membership.matched, 'engine')} none is refused, failed or behind"
    )


def syncing(facts: Facts) -> Finding | None:
    """A version is on its way."""
    if facts.report is None or not facts.report.syncing:
        return None
    return Finding(reasons.SYNCING, f"a version is on its way to {count(len(facts.membership.members), 'engine')}")


def engines_joining(facts: Facts) -> Finding | None:
    """Engines start or receive their first version."""
    if not facts.joining:
        return None
    waiting = [outsider.message for outsider in facts.membership.waiting]
    named = f": {listing(waiting, 3)}" if waiting else ""
    return Finding(
        reasons.ENGINES_JOINING, f"{facts.joining} of {count(facts.membership.matched, 'engine')} joining{named}"
    )


def idle(_: Facts) -> Finding:
    """Nothing is going on."""
    return Finding(reasons.IDLE, "no version is on its way and no engine is joining")


def suspended(facts: Facts) -> Finding | None:
    """The user holds publishing back."""
    message = "publishing is held back and engines keep their version: set spec.suspend to false to go on"
    return Finding(reasons.SUSPENDED, message) if facts.suspend else None


def sync_failed(facts: Facts) -> Finding | None:
    """The coordinator reports that its last publish reached nobody."""
    if facts.report is None or not (facts.report.error or facts.report.error_reason):
        return None
    reason = facts.report.error_reason
    return Finding(reason if _REASON.fullmatch(reason) else reasons.SYNC_FAILED, facts.report.error or reason)


def in_place(facts: Facts) -> Finding:
    """Versions reach the engines."""
    if facts.report is None or not facts.report.version:
        return Finding(reasons.NOTHING_PUBLISHED, "all is in place; the trainer has not published a version yet")
    return Finding(
        reasons.IN_SYNC,
        f"{facts.report.current} of {count(facts.membership.matched, 'engine')} current at {facts.report.version}",
    )
