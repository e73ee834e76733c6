"""What the demo does when, from events alone."""

from typing import Any

import pytest

from tools.demo.story import Delete, EngineUp, PodSeen, Scale, Story, TrainerSaid


def story() -> Story:
    return Story(scale_at=2, delete_at=4)


def step(number: int, outcome: str = "Current") -> TrainerSaid:
    engines = [{"engine": "e1", "outcome": outcome, "reason": "", "pause_seconds": 0.1}]
    return TrainerSaid({"event": "step", "step": number, "engines": engines, "status": "Current", "reason": ""})


def publishing(number: int) -> TrainerSaid:
    return TrainerSaid({"event": "publishing", "step": number})


def pod(name: str, *, at_ms: int = 1000, **what: Any) -> PodSeen:
    return PodSeen(name, "rollout", at_ms, at_ms, **what)


def test_the_rollout_is_scaled_once_after_its_step() -> None:
    """Not before, not again."""
    told = story()
    assert told.take(step(1)) == []
    assert told.take(step(2)) == [Scale(4)]
    assert told.take(step(3)) == []


def test_one_engine_is_deleted_in_the_middle_of_a_sync() -> None:
    """When the trainer begins to publish, late enough, and all four engines are current; only once."""
    told = story()
    told.take(step(2))
    for name in ("e2", "e1", "e4"):
        told.take(pod(name, gate=True))
    assert told.take(publishing(4)) == []
    told.take(pod("e3", gate=True))
    assert told.take(step(4)) == []
    assert told.take(publishing(5)) == [Delete("e1")]
    assert told.take(publishing(6)) == []


def test_it_is_not_deleted_too_early() -> None:
    """Four engines or not: the step comes first."""
    told = story()
    for name in ("e1", "e2", "e3", "e4"):
        told.take(pod(name, gate=True))
    assert told.take(publishing(3)) == []


def test_a_joiner_is_an_engine_that_came_after_scaling() -> None:
    """Its times: seen, up, and the arrival of the first event with an open gate."""
    told = story()
    told.take(pod("e1", gate=True))
    told.take(step(2))
    told.take(pod("e2", at_ms=2000))
    told.take(EngineUp("e2", 3000))
    told.take(pod("e2", at_ms=3500, gate=True, gate_ms=3000))
    told.take(pod("e2", at_ms=4000, gate=True, gate_ms=3000))
    (joined,) = told.joins
    assert (joined.name, joined.first_seen_ms, joined.up_ms, joined.gate_open_ms) == ("e2", 2000, 3000, 3500)


def test_it_is_settled_when_four_engines_are_current_after_the_last_step() -> None:
    """An engine that is leaving or gone does not count, nor does a summary alone."""
    told = story()
    for name in ("e1", "e2", "e3", "e4"):
        told.take(pod(name, gate=True))
    assert not told.settled
    told.take(TrainerSaid({"event": "summary"}))
    assert told.settled
    told.take(pod("e4", gate=True, leaving=True))
    assert not told.settled
    told.take(pod("e4", gone=True))
    told.take(pod("e5", gate=True))
    assert told.settled


@pytest.mark.parametrize(
    ("said", "words"),
    [
        pytest.param({"event": "failed", "rank": 0, "error": "no engine"}, "no engine", id="the trainer gives up"),
        pytest.param({"event": "started"}, "anew", id="the trainer is started again in the middle"),
    ],
)
def test_what_ends_the_demo(said: dict[str, Any], words: str) -> None:
    """A trainer that fails or restarts: the sentence says so."""
    told = story()
    told.take(step(1))
    told.take(TrainerSaid(said))
    assert words in told.failure


def test_news_name_engines_that_are_not_current_and_wrong_answers() -> None:
    """What a user has to see beside the table."""
    told = story()
    told.take(step(1, "Gone"))
    told.take(TrainerSaid({"event": "torn", "step": 1, "what": "e1: 3 tokens of version a.1 ..."}))
    assert any("e1: Gone" in line for line in told.news)
    assert any(line.startswith("torn: e1") for line in told.news)


def test_a_pod_that_cannot_start_is_named_after_a_while() -> None:
    """Only what does not pass by waiting, only while it lasts, and not at once."""
    told = story()
    told.take(pod("e1", at_ms=1000, note="Pending"))
    told.take(pod("e2", at_ms=1000, note="engine: ErrImagePull no such image"))
    told.take(pod("e2", at_ms=31_000, note="engine: ImagePullBackOff no such image"))
    assert told.stuck(60_000, 60) == ""
    assert told.stuck(62_000, 60) == "pod e2 cannot start: engine: ImagePullBackOff no such image"
    told.take(pod("e2", at_ms=63_000, note="Running"))
    assert told.stuck(200_000, 60) == ""
