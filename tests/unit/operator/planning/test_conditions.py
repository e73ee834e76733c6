"""Which reason wins, and what a message names."""

from dataclasses import replace

import pytest

from tests.build.facts import NOW, facts
from tests.build.pods import OTHER_LAYOUT, engine, planned, shard, source_rank, told, trainer
from weightsync import names
from weightsync.api.v1alpha1.status import Condition
from weightsync.report import Offender, Report
from weightsync_operator.planning import reasons
from weightsync_operator.planning.conditions import CHAINS, conditions
from weightsync_operator.planning.facts import UNREADABLE, Facts, report_in_force
from weightsync_operator.planning.ownership import Contest, Owned


def found(facts: Facts, kind: str) -> Condition:
    return next(c for c in conditions(facts, (), NOW) if c.type == kind)


HALF = trainer("t", source_rank(0, world=2))
REPORT = Report(term=1, version="v1", current=1)
LWS = "leaderworkerset.sigs.k8s.io"
PLACE = {f"{LWS}/name": "x", f"{LWS}/group-index": "0", f"{LWS}/worker-index": "0"}
PART = shard("part", (0,), labels=PLACE, size=2)


@pytest.mark.parametrize(
    ("given", "kind", "status", "reason", "said"),
    [
        pytest.param(facts([], []), names.READY, "False", reasons.NO_SOURCES, "app=trainer", id="nothing is there"),
        pytest.param(
            facts([], [], suspend=True), names.READY, "False", reasons.SUSPENDED, "spec.suspend", id="suspended wins"
        ),
        pytest.param(
            facts([], []), names.PLAN_READY, "False", reasons.SOURCES_MISSING, "no pod matches", id="no plan and why"
        ),
        pytest.param(
            facts([trainer()], []), names.PLAN_READY, "False", reasons.NO_TARGETS, "trainer-0", id="no targets"
        ),
        pytest.param(
            replace(facts([trainer()], []), owned=Owned((), (), absent_rollouts=("a is Terminating",))),
            names.PLAN_READY,
            "False",
            reasons.NO_TARGETS,
            "no pod of the rollout selector app=rollout can take part: a is Terminating",
            id="no targets but some that cannot be",
        ),
        pytest.param(
            facts([trainer()], [engine(announced=False)]),
            names.PLAN_READY,
            "False",
            reasons.TARGETS_NOT_READY,
            "pod rollout-a",
            id="targets without agents",
        ),
        pytest.param(
            facts([trainer()], [replace(PART, gated=True)]),
            names.PLAN_READY,
            "False",
            reasons.ORDERED_STARTUP,
            "pod part waits at its readiness gate",
            id="an engine whose other pods wait for its first",
        ),
        pytest.param(
            facts([trainer()], [engine(), replace(PART, gated=True)]),
            names.DEGRADED,
            "True",
            reasons.ORDERED_STARTUP,
            "pod part waits",
            id="which does not keep the others from being served",
        ),
        pytest.param(
            facts([trainer()], [PART]),
            names.PROGRESSING,
            "True",
            reasons.ENGINES_JOINING,
            "engine x-0 has 1 of its 2 pods (part): missing 1",
            id="part of an engine",
        ),
        pytest.param(
            facts([told(trainer(), room_bytes=9)], [told(engine(), replica_bytes=10)]),
            names.DEGRADED,
            "True",
            reasons.SOURCES_FULL,
            "engine rollout-a: no trainer pod has room for one more replica of 10 bytes",
            id="no room at any source",
        ),
        pytest.param(
            facts([trainer()], [engine()]), names.PLAN_READY, "True", reasons.PLANNED, "1 engine", id="planned"
        ),
        pytest.param(
            facts([trainer()], [engine()]), names.READY, "True", reasons.NOTHING_PUBLISHED, "", id="before the first"
        ),
        pytest.param(
            facts([HALF], [engine()]), names.PLAN_READY, "True", reasons.PLANNED, "", id="a missing rank plans"
        ),
        pytest.param(
            facts([HALF], [engine()]),
            names.READY,
            "False",
            reasons.RANKS_MISSING,
            "missing: 1",
            id="but is not ready",
        ),
        pytest.param(
            facts([trainer()], [engine()], report=REPORT), names.READY, "True", reasons.IN_SYNC, "v1", id="in sync"
        ),
        pytest.param(
            facts([trainer()], [engine()], report=Report(term=1, error="boom", error_reason="CoverageIncomplete")),
            names.READY,
            "False",
            "CoverageIncomplete",
            "boom",
            id="the coordinator's reason",
        ),
        pytest.param(
            facts([trainer()], [engine()], report=Report(term=1, error="boom", error_reason="not a reason!")),
            names.READY,
            "False",
            reasons.SYNC_FAILED,
            "boom",
            id="a reason that the API would refuse",
        ),
        pytest.param(
            facts([], [engine("a"), engine("b", layout=OTHER_LAYOUT)]),
            names.READY,
            "False",
            reasons.NO_SOURCES,
            "",
            id="sources missing win over layouts that differ",
        ),
        pytest.param(
            facts([], [engine("a"), engine("b", layout=OTHER_LAYOUT)]),
            names.DEGRADED,
            "True",
            reasons.LAYOUTS_DIFFER,
            "pod b",
            id="which are told all the same",
        ),
        pytest.param(
            facts(
                [trainer()],
                [engine("a"), engine("b", layout=OTHER_LAYOUT), engine("c", refused="no")],
                contests=(Contest("a", "young", ours=True),),
            ),
            names.DEGRADED,
            "True",
            reasons.PODS_MATCHED_TWICE,
            "(also: EngineRefused, LayoutsDiffer)",
            id="several things at once",
        ),
        pytest.param(
            facts([trainer()], [], contests=(Contest("a", "old", ours=False),)),
            names.DEGRADED,
            "True",
            reasons.PODS_MATCHED_TWICE,
            "pods a belong to the older WeightSync old",
            id="the younger",
        ),
        pytest.param(
            facts([trainer()], [], both=("a",)),
            names.DEGRADED,
            "True",
            reasons.PODS_MATCHED_TWICE,
            "match both selectors",
            id="both selectors",
        ),
        pytest.param(
            facts(
                [trainer()],
                [engine()],
                report=Report(
                    term=1, failed=1, worst=(Offender(engine="rollout-a", reason="ApplyFailed", message="no memory"),)
                ),
            ),
            names.DEGRADED,
            "True",
            reasons.ENGINES_FAILED,
            "rollout-a (ApplyFailed: no memory)",
            id="failed engines",
        ),
        pytest.param(
            facts([trainer()], [engine()], report=Report(term=1, behind=1)),
            names.DEGRADED,
            "True",
            reasons.ENGINES_BEHIND,
            "1 of 1 engine",
            id="engines behind",
        ),
        pytest.param(
            facts([trainer()], [engine()]), names.PROGRESSING, "True", reasons.ENGINES_JOINING, "1 of 1", id="joining"
        ),
        pytest.param(
            facts([trainer()], [engine()], report=Report(term=1, syncing=True)),
            names.PROGRESSING,
            "True",
            reasons.SYNCING,
            "1 engine",
            id="syncing",
        ),
        pytest.param(
            facts([trainer()], [engine()], report=REPORT), names.PROGRESSING, "False", reasons.IDLE, "", id="idle"
        ),
    ],
)
def test_conditions(given: Facts, kind: str, status: str, reason: str, said: str) -> None:
    """The first check of the chain that finds something gives the reason; its message names the pods."""
    condition = found(given, kind)
    assert (condition.status, condition.reason) == (status, reason)
    assert said in condition.message


def test_every_condition_is_always_there() -> None:
    """All types, in one order, so that a status does not change by chance."""
    types = [c.type for c in conditions(facts([], []), (), NOW)]
    assert types == [*(chain.type for chain in CHAINS), names.RDMA_READY]
    assert types[:5] == [names.READY, names.SOURCES_READY, names.PLAN_READY, names.PROGRESSING, names.DEGRADED]


def test_the_time_of_a_transition_stays_while_the_status_stays() -> None:
    """A new reason under the same status is no transition; a new status is."""
    before = conditions(facts([], []), (), "2026-01-01T00:00:00Z")
    same = conditions(facts([trainer(announced=False)], []), before, "2026-01-01T00:01:00Z")
    after = conditions(facts([trainer()], [engine()]), same, "2026-01-01T00:02:00Z")
    ready = [next(c for c in step if c.type == names.READY) for step in (before, same, after)]
    assert [c.last_transition_time[14:16] for c in ready] == ["00", "00", "02"]
    assert ready[0].reason != ready[1].reason


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        pytest.param(Report(term=1, version="v"), "v", id="of the plan's term"),
        pytest.param(Report(term=2, version="v"), None, id="of another term"),
        pytest.param(Report(term=UNREADABLE), "", id="that cannot be read, which is all that is known of it"),
        pytest.param(None, None, id="none"),
    ],
)
def test_only_the_report_of_this_term_counts(report: Report | None, expected: str | None) -> None:
    """Another life of the coordinator says nothing about this one."""
    pod = trainer(report=report)
    plan = planned([pod], [engine()])
    found = report_in_force(Owned((pod,), ()), plan)
    assert (None if found is None else found.version) == expected
