"""The report's form and its bounds."""

from typing import Any

import pytest

from tools.demo.figures import Readback, join, judge, report
from tools.demo.story import PodStory, Story

GOOD: dict[str, Any] = {
    "reward_first": 0.1,
    "reward_last": 0.5,
    "reward_max_possible": 1.0,
    "steps": 40,
    "versions_published": 40,
    "engines": [{"pod": f"e{at}", "version": "a.40", "digest_ok": True} for at in range(4)],
    "joins": [{"pod": f"e{at}", "start_seconds": 9.0, "join_seconds": 1.0} for at in range(3)],
    "sync_seconds": {"p50": 0.5, "max": 1.0},
    "pause_seconds": {"p50": 0.1, "max": 0.2},
    "checked_answers": 200,
    "distinguishable": 0.5,
    "torn_answers": 0,
    "stale_answers": 0,
}


def broken(**changes: Any) -> list[str]:
    return [verdict.name for verdict in judge({**GOOD, **changes}, "a.40") if not verdict.kept]


def engines(*last: tuple[str, bool]) -> list[dict[str, Any]]:
    return [*GOOD["engines"][:3], *({"pod": "e9", "version": v, "digest_ok": ok} for v, ok in last)]


def joins(*seconds: float | None) -> list[dict[str, Any]]:
    return [{"pod": "e", "start_seconds": 9.0, "join_seconds": value} for value in seconds]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        pytest.param({}, [], id="all kept"),
        pytest.param({"reward_last": 0.37}, [], id="a gain that is just enough"),
        pytest.param({"reward_last": 0.36}, ["reward"], id="a gain that is not"),
        pytest.param({"engines": engines(("a.39", True))}, ["engines current"], id="an engine at an older version"),
        pytest.param(
            {"engines": engines(("a.40", False))}, ["engines current"], id="bytes that are not the version's"
        ),
        pytest.param({"engines": engines()}, ["engines current"], id="an engine that is missing"),
        pytest.param({"joins": joins(1.0, 3.5, 2.0)}, [], id="a join at the bound"),
        pytest.param({"joins": joins(1.0, 3.51, 2.0)}, ["joins"], id="a join above it"),
        pytest.param({"joins": joins(1.0, 1.0)}, ["joins"], id="nobody joined for the deleted engine"),
        pytest.param({"joins": joins(1.0, None, 1.0)}, ["joins"], id="a join whose time is not known"),
        pytest.param({"checked_answers": 199}, ["answers checked"], id="too few answers"),
        pytest.param({"distinguishable": 0.49}, ["distinguishable"], id="answers that prove little"),
        pytest.param({"torn_answers": 1}, ["torn answers"], id="one torn answer"),
        pytest.param({"stale_answers": 1}, ["stale answers"], id="one stale answer"),
    ],
)
def test_bounds(changes: dict[str, Any], names: list[str]) -> None:
    """Exactly the bound that is broken is named."""
    assert broken(**changes) == names


def test_the_report_has_the_form_that_others_read() -> None:
    """Keys and figures, from the story and what was read back."""
    story = Story(scale_at=1, delete_at=2)
    for sync, outcome in ((0.4, "Current"), (0.6, "Current"), (9.0, "Gone")):
        engine = {"engine": "e0", "outcome": outcome, "pause_seconds": sync / 10}
        story.steps.append({"engines": [engine], "sync_seconds": sync})
    story.steps.append({"engines": [], "sync_seconds": 0.0})
    story.summary = {
        "reward_first": 0.1, "reward_last": 0.5, "reward_max_possible": 1.0, "steps": 4, "versions_published": 3,
        "checked": 8, "distinguishable": 6, "torn": 0, "stale": 0,
    }  # fmt: skip
    made = report(story, [Readback("e0", "a.3", digest_ok=True)], one_clock=True)
    assert list(made) == list(GOOD)
    assert made["sync_seconds"] == {"p50": 0.6, "max": 9.0}
    assert made["pause_seconds"] == {"p50": 0.05, "max": 0.06}
    assert made["distinguishable"] == 0.75
    assert made["engines"] == [{"pod": "e0", "version": "a.3", "digest_ok": True}]


@pytest.mark.parametrize(
    ("one_clock", "expected"),
    [
        pytest.param(True, (2.0, 0.5), id="pods of this machine"),
        pytest.param(False, (3.0, 1.0), id="another cluster"),
    ],
)
def test_times_of_a_join(one_clock: bool, expected: tuple[float, float]) -> None:
    """On this machine by the arrival of events, elsewhere by what the API noted."""
    pod = PodStory("e", "rollout", first_seen_ms=1000, created_ms=0, joiner=True)
    pod.up_ms, pod.gate_open_ms, pod.gate_transition_ms = 3000, 3500, 4000
    made = join(pod, one_clock=one_clock)
    assert (made["start_seconds"], made["join_seconds"]) == expected
