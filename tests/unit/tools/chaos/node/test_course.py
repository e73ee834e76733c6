"""What the trials on the node strike when, and what they conclude, from the trainer's words alone."""

from typing import Any

import pytest

from tools.chaos.node import judging
from tools.chaos.node.cases import How, NodeCase, Part, table
from tools.chaos.node.course import Arm, Course, Strike
from tools.demo.errors import DemoError
from tools.demo.figures import Readback

KILLED = NodeCase(Part.ENGINE_AGENT, How.KILL)
STOPPED = NodeCase(Part.ENGINE, How.STOP)
ALL = {"e1": "Current", "e2": "Current"}


def step(at_ms: int, outcomes: dict[str, str] | None = None) -> dict[str, Any]:
    engines = [{"engine": name, "outcome": what} for name, what in (outcomes or ALL).items()]
    tally = {"checked": 10, "torn": 0, "stale": 0}
    return {"event": "step", "unix_ms": at_ms, "engines": engines, "sync_seconds": 0.5, **tally}


def publishing(at_ms: int) -> dict[str, Any]:
    return {"event": "publishing", "unix_ms": at_ms}


def course(*cases: NodeCase) -> Course:
    made = Course(cases, engines=2, patience_seconds=60)
    made.said({"event": "started", "unix_ms": 0})
    return made


def armed(*cases: NodeCase) -> Course:
    made = course(*cases)
    made.said(step(1000))
    assert made.said(step(2000)) == [Arm(cases[0])]
    return made


def struck(case: NodeCase, victim: str = "e1") -> Course:
    made = armed(case)
    assert made.said(publishing(3000)) == [Strike(case)]
    made.struck(victim, 3100)
    return made


def test_a_case_waits_for_clean_steps_and_for_a_sync_to_begin() -> None:
    """Nothing is struck before every engine was reached twice, nor between syncs, nor twice."""
    made = course(KILLED)
    assert made.said(publishing(500)) == []
    assert made.said(step(1000, {"e1": "Current"})) == []  # one engine is not there yet
    assert made.said(step(2000)) == []
    assert made.said(step(3000)) == [Arm(KILLED)]
    assert made.said(publishing(4000)) == [Strike(KILLED)]
    made.struck("e1", 4100)
    assert made.said(publishing(5000)) == []


def test_it_is_healed_by_the_first_step_that_reaches_every_engine() -> None:
    """Counted from the container's start where that came after the fault."""
    made = struck(KILLED)
    made.said(step(4000, {"e1": "Failed", "e2": "Current"}))
    made.said(step(9000, {"e2": "Current"}))
    made.said(step(20_000))
    made.freed(8000)
    trial = made.trials[0]
    assert trial.heal_seconds == pytest.approx(12.0)
    assert judging.wrong(trial) == ""
    assert trial.outcomes == {"e1": "Failed", "e2": "Current"}


def test_the_next_case_waits_until_a_stopped_part_goes_on() -> None:
    """Whole steps meanwhile are no reason."""
    made = armed(STOPPED, KILLED)
    made.said(publishing(3000))
    made.struck("e1", 3100)
    assert [made.said(step(at)) for at in (4000, 5000, 6000)] == [[], [], []]
    made.freed(15_100)
    assert made.said(step(16_000)) == [Arm(KILLED)]


def test_an_engine_beside_the_struck_one_must_be_reached() -> None:
    """By the struck sync itself."""
    made = struck(KILLED)
    made.said(step(4000, {"e1": "Failed", "e2": "Behind"}))
    made.said(step(5000))
    assert judging.wrong(made.trials[0]) == "engines beside it were not served: e2: Behind"


def test_what_never_heals_has_failed_and_the_next_case_comes() -> None:
    """After its patience."""
    made = struck(KILLED)
    made.said(step(4000, {"e1": "Failed", "e2": "Current"}))
    made.tick(63_000)
    assert made.trials[0].problem == ""
    made.tick(63_200)
    assert "within 60 s" in judging.wrong(made.trials[0])


def test_a_wrong_answer_is_blamed_on_the_last_fault() -> None:
    """And fails it."""
    made = struck(KILLED)
    made.said({"event": "torn", "unix_ms": 3500, "what": "e1 mixed versions 3 and 4"})
    made.said(step(4000))
    assert judging.wrong(made.trials[0]) == "torn: e1 mixed versions 3 and 4"


def test_a_wrong_answer_before_any_fault_ends_the_trials() -> None:
    """There is nothing to be learnt then."""
    with pytest.raises(DemoError, match="before any fault: torn"):
        course(KILLED).said({"event": "torn", "unix_ms": 1, "what": "x"})


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        (NodeCase(Part.TRAINER, How.KILL), ""),
        (KILLED, "the trainer failed: its other rank is gone"),
    ],
    ids=["its rank was killed", "something else was"],
)
def test_a_trainer_may_fail_only_with_its_own_rank(case: NodeCase, wrong: str) -> None:
    """Collectives end with a rank; nothing else of ours may end a trainer."""
    made = struck(case)
    made.said({"event": "failed", "unix_ms": 3500, "error": "its other rank is gone"})
    made.said({"event": "started", "unix_ms": 9000})
    made.said(step(10_000))
    assert judging.wrong(made.trials[0]) == wrong


def test_it_is_over_when_the_last_case_is_healed_and_clean() -> None:
    """Two clean steps show that nothing is left."""
    made = struck(KILLED)
    made.said(step(4000))
    assert not made.over
    made.said(step(5000))
    made.said(step(6000))
    assert made.over


def test_lives_of_the_trainer_are_tallied_together() -> None:
    """Each life counts from nothing."""
    made = struck(NodeCase(Part.TRAINER, How.KILL))
    made.said({"event": "started", "unix_ms": 9000})
    made.said(step(10_000))
    found = {one.name: one for one in judging.measures(made.trials, [], made.lives, [Readback("e1", "v", False)])}
    assert found["answers checked"].value == 20
    assert not found["engines not read back right"].holds
    assert found["torn answers"].holds


def test_ids_are_unique() -> None:
    """They name the cases on the command line."""
    ids = [case.id for case in table()]
    assert len(ids) == len(set(ids)) == len(table())
    assert len(ids) <= 20
