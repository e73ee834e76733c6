"""What a coordinator knows of one engine, and when it is due for a question, a welcome or a repair."""

from typing import Any

import pytest

from tests.unit.agent.protocol.test_relaying import PROGRAM, engine
from weightsync.wire.v1 import AgentStatus, EngineOutcome
from weightsync_agent.protocol.repair import REJOIN_FIRST, REJOIN_LONGEST, backoff
from weightsync_agent.protocol.standing import ASK_OTHERS, SOURCE_SECONDS, WELCOME_SECONDS, Known, Standing


def known(**more: Any) -> Known:
    """One that lacks the version, and said so."""
    return Known(engine("a"), **{"standing": Standing.BEHIND, "asked": True, **more})


def status(**more: Any) -> AgentStatus:
    fields = {"uid": "a", "term": 1, "incarnation": "1", "ready": True, "version": "", "journal": "", "gate": False}
    return AgentStatus.model_validate(fields | {"ranks": [], **more})


def outcome(what: str, reason: str = "") -> EngineOutcome:
    return EngineOutcome.model_validate({"engine": "a", "outcome": what, "reason": reason, "message": "why"})


@pytest.mark.parametrize(
    ("more", "policy", "due"),
    [
        pytest.param({}, "Peer", True, id="it lacks the version"),
        pytest.param({"standing": Standing.CURRENT}, "Peer", False, id="it serves it"),
        pytest.param({"asked": False}, "Peer", False, id="it has not said yet: it may serve it"),
        pytest.param({"retry_at": 5.1}, "Peer", False, id="it failed a moment ago"),
        pytest.param({"retry_at": 5.0}, "Peer", True, id="it failed a while ago"),
        pytest.param({"pulls": True}, "Peer", False, id="it gets it from another engine"),
        pytest.param({"standing": Standing.JOINING}, "Peer", True, id="it is new"),
        pytest.param({"standing": Standing.JOINING}, "NextVersion", False, id="a new one waits for the next version"),
        pytest.param({"standing": Standing.JOINING, "served": True}, "NextVersion", True, id="it had one before"),
        pytest.param(
            {"standing": Standing.JOINING, "missed": True}, "NextVersion", True, id="the next one missed it"
        ),
        pytest.param({}, "NextVersion", True, id="one that fell behind is none that came"),
    ],
)
def test_when_an_engine_is_repaired(more: dict[str, Any], policy: Any, due: bool) -> None:
    """A repair of one that serves the version would cost it its replica."""
    assert known(**more).to_repair(5.0, policy) is due


@pytest.mark.parametrize(
    ("what", "reason", "failures", "retry_at"),
    [
        pytest.param("Superseded", "Superseded", 0, 7.0, id="a newer one came: at once"),
        pytest.param("Failed", "EngineSilent", 1, 7.0 + backoff(1), id="it failed: later, ever later"),
        pytest.param(
            "Failed", "NotFilled", 0, 7.0 + SOURCE_SECONDS, id="its sources lacked it: that is not its fault"
        ),
        pytest.param("Failed", "RelayLost", 0, 7.0 + SOURCE_SECONDS, id="nor that of who was to feed it"),
        pytest.param("Behind", "EngineSilent", 0, 0.0, id="it was left out: nothing new is known of it"),
    ],
)
def test_when_it_is_tried_again(what: str, reason: str, failures: int, retry_at: float) -> None:
    """By what it was taken out for; it has missed a version in any case."""
    one = known(standing=Standing.CURRENT)
    one.fell_behind(outcome(what, reason), 7.0)
    assert (one.standing, one.missed, one.failures, one.retry_at) == (Standing.BEHIND, True, failures, retry_at)
    new = known(standing=Standing.JOINING)
    new.fell_behind(outcome(what, reason), 7.0)
    assert new.standing is Standing.JOINING


def test_what_its_sources_did_is_no_failure_of_its() -> None:
    """Whatever the reason that they gave."""
    one = known(standing=Standing.CURRENT)
    one.fell_behind(outcome("Failed", "UnknownRank"), 7.0, blameless=True)
    assert (one.standing, one.failures, one.retry_at) == (Standing.BEHIND, 0, 7.0 + SOURCE_SECONDS)


@pytest.mark.parametrize(
    ("failures", "ready", "later", "holds"),
    [
        pytest.param(1, True, REJOIN_FIRST, False, id="it answers, and a while has passed"),
        pytest.param(1, True, REJOIN_FIRST - 0.1, True, id="it failed a moment ago"),
        pytest.param(1, False, REJOIN_FIRST, True, id="its engine is not there"),
        pytest.param(1, None, REJOIN_LONGEST, True, id="it has not answered since"),
        pytest.param(4, True, 8 * REJOIN_FIRST, False, id="it failed often: a longer while"),
        pytest.param(4, True, 8 * REJOIN_FIRST - 0.1, True, id="so this is too soon"),
        pytest.param(40, True, REJOIN_LONGEST, False, id="the longest"),
    ],
)
def test_when_a_publish_waits_for_one_that_failed(
    failures: int, ready: bool | None, later: float, holds: bool
) -> None:
    """Until it answers, and the longer the more often it failed: it may cost the others a stall each time."""
    one = known(failures=failures - 1)
    one.said(status(ready=True))
    one.fell_behind(outcome("Failed", "EngineSilent"), 7.0)
    if ready is not None:
        one.said(status(ready=ready))
    assert one.holds_others(7.0 + later) is holds
    one.silent()
    assert one.holds_others(7.0 + REJOIN_LONGEST)
    one.became_current("1.1")
    assert not one.holds_others(7.0)


def test_each_is_asked_and_welcomed_in_its_own_rhythm() -> None:
    """One that serves the version more seldom: its restarts are announced."""
    one = known()
    assert [one.ask(now, 15.0) for now in (0.0, 0.0, ASK_OTHERS - 0.1, ASK_OTHERS)] == [True, False, False, True]
    one.became_current("1.1")
    assert [one.ask(now, 15.0) for now in (2.0, 16.9, 17.0)] == [True, False, True]
    assert [one.welcome(now) for now in (0.0, WELCOME_SECONDS - 0.1, WELCOME_SECONDS)] == [True, False, True]


def test_silence_is_told_of_one_that_lacks_the_version_and_forgotten_with_its_answer() -> None:
    """One that serves it goes on; of one that failed the failure is told."""
    one, current, failed = known(), known(standing=Standing.CURRENT), known(failures=1, reason="ApplyFailed")
    for each in (one, current, failed):
        each.silent()
    assert [each.reason for each in (one, current, failed)] == ["Silent", "", "ApplyFailed"]
    for each in (one, failed):
        each.said(status(pulls=True))
    assert [(each.reason, each.pulls, each.served) for each in (one, failed)] == [
        ("", True, False),
        ("ApplyFailed", True, False),
    ]


def test_one_that_serves_the_version_has_no_trouble_any_more() -> None:
    """Until it is seen to serve another one: that is repaired at once."""
    one = known(failures=3, reason="ApplyFailed", message="no memory")
    one.became_current("1.1")
    assert (one.standing, one.version, one.failures, one.reason) == (Standing.CURRENT, "1.1", 0, "")
    one.changed("", 9.0)
    assert (one.standing, one.reason, one.retry_at) == (Standing.BEHIND, "EngineChanged", 9.0)
    assert "serves nothing" in one.message
    assert one.to_repair(9.0, "Peer")


def test_a_version_fits_an_engine_all_of_whose_ranks_it_was_made_for() -> None:
    """Else the next one will."""
    two = Known(engine("a", pods=2))
    assert two.fits({PROGRAM})
    assert not two.fits({"9" * 32})
