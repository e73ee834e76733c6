"""Counts, what is kept and what is not, and which changes are told."""

from tests.build.facts import NOW, facts
from tests.build.pods import OTHER_LAYOUT, engine, shard, trainer
from weightsync.api.v1alpha1.status import WeightSyncStatus
from weightsync.report import WORST, LastSync, Offender, Report
from weightsync_operator.planning import changes, reasons, status
from weightsync_operator.planning.notices import notices
from weightsync_operator.planning.slicing import cut

OWNER = ("policy", "uid")
LWS = "leaderworkerset.sigs.k8s.io"
SYNC = LastSync(version="v1", engines=2, nbytes=1000, seconds=0.5, pause_seconds_p50=0.1699, pause_seconds_max=0.2)
EMPTY = WeightSyncStatus()


def test_counts_add_up_once_the_coordinator_has_reported() -> None:
    """matched = current + behind + joining + failed, refused and waiting engines included."""
    engines = [engine("a"), engine("b"), engine("c", layout=OTHER_LAYOUT), engine("d", announced=False)]
    made = status.build(facts([trainer()], engines, report=Report(term=1, current=1, joining=1)), (), EMPTY, NOW)
    assert made.counts is not None
    assert made.counts.model_dump() == {"matched": 4, "current": 1, "behind": 0, "joining": 2, "failed": 1}


def test_figures_are_whole_numbers() -> None:
    """Seconds become milliseconds; the rate is bytes over seconds."""
    made = status.last_sync(SYNC)
    assert (made.duration_milliseconds, made.pause_p50_milliseconds, made.bytes_per_second) == (500, 170, 2000)


def test_a_rate_is_never_more_than_the_api_takes() -> None:
    """Of bytes over next to no time: else the status was refused, and the operator ended."""
    assert status.last_sync(LastSync(version="v", nbytes=10**9, seconds=5e-324)).bytes_per_second == 2**63 - 1


def test_what_was_decided_outlives_its_coordinator() -> None:
    """Without a report of this term version, label and last sync are kept; counts are not."""
    before = status.build(
        facts([trainer()], [engine()], report=Report(term=1, version="v1", label="x", current=1, last_sync=SYNC)),
        (), EMPTY, NOW,
    )  # fmt: skip
    after = status.build(facts([trainer()], [engine()]), (), before, NOW)
    assert (after.version, after.label, after.last_sync) == (before.version, before.label, before.last_sync)
    assert after.counts is not None
    assert after.counts.current == 0


def test_the_worst_are_bounded_and_the_refused_come_first() -> None:
    """At most WORST names, so that no object grows with the cluster."""
    named = tuple(Offender(engine=f"e{i}", reason="Behind", message="late") for i in range(WORST))
    given = facts([trainer()], [engine("bad", refused="no")], report=Report(term=1, worst=named))
    worst = status.build(given, (), EMPTY, NOW).worst
    assert len(worst) == WORST
    assert (worst[0].engine, worst[0].reason) == ("bad", reasons.ENGINE_REFUSED)


def test_an_engine_in_part_is_named_with_what_it_lacks() -> None:
    """Behind those that somebody must act for; an engine that only starts is not named."""
    labels = {f"{LWS}/name": "x", f"{LWS}/group-index": "0", f"{LWS}/worker-index": "1"}
    part = shard("part", (1,), labels=labels, size=2)
    given = facts([trainer()], [part, engine("bad", refused="no"), engine("new", announced=False)])
    worst = status.build(given, (), EMPTY, NOW).worst
    assert [(offender.engine, offender.reason) for offender in worst] == [
        ("bad", reasons.ENGINE_REFUSED),
        ("x-0", reasons.ENGINE_INCOMPLETE),
    ]
    assert worst[1].message == "engine x-0 has 1 of its 2 pods (part): missing 0"


def test_nothing_changed_is_nothing_to_do() -> None:
    """The second pass over the same pods asks for nothing, whatever the clock says."""
    given = facts([trainer()], [engine()])
    assert given.plan is not None
    slices = cut(given.plan, OWNER, ())
    first = status.build(given, slices, EMPTY, NOW)
    todo = changes.between(slices, set(), first, EMPTY)
    assert ([s.name for s in todo.create], todo.status, todo.delete) == ([s.name for s in slices], first, ())
    second = status.build(given, slices, first, "2026-01-01T09:00:00Z")
    assert not changes.between(slices, {s.name for s in slices}, second, first)


def test_slices_that_no_head_names_are_deleted() -> None:
    """Left-overs of an earlier head go; those in force stay."""
    given = facts([trainer()], [engine()])
    assert given.plan is not None
    slices = cut(given.plan, OWNER, ())
    made = status.build(given, slices, EMPTY, NOW)
    todo = changes.between(slices, {"policy-old", *(s.name for s in slices)}, made, made)
    assert (todo.create, todo.status, todo.delete) == ((), None, ("policy-old",))


def test_conditions_of_others_are_left_alone() -> None:
    """Someone else's condition type in the status is no difference."""
    made = status.build(facts([], []), (), EMPTY, NOW)
    other = made.conditions[0].model_copy(update={"type": "Theirs"})
    assert not changes.between((), set(), made, made.model_copy(update={"conditions": (other, *made.conditions)}))


def test_events_for_what_turned() -> None:
    """Causes before effects, each reason once; a good start is no news; Progressing never is."""
    start = status.build(facts([], []), (), EMPTY, NOW)
    assert [(n.type, n.reason) for n in notices(EMPTY, start, "")] == [("Warning", reasons.NO_SOURCES)]
    given = facts([trainer()], [engine()])
    assert given.plan is not None
    planned = status.build(given, cut(given.plan, OWNER, ()), start, NOW)
    told = notices(start, planned, "trainer-0")
    assert [n.reason for n in told] == [
        reasons.COORDINATOR_CHANGED, reasons.SOURCES_ANNOUNCED, reasons.PLANNED, reasons.NOTHING_PUBLISHED,
    ]  # fmt: skip
    assert "pod trainer-0" in told[0].note
    assert {n.type for n in told} == {"Normal"}
    assert notices(planned, planned, "trainer-0") == []
