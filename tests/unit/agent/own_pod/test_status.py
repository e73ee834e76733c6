"""The applied objects: whole, minimal, and with times that turn only when the status does."""

from datetime import UTC, datetime

import pytest

from weightsync.announcement import Announcement
from weightsync.errors import InputError
from weightsync_agent.own_pod.base import Gate, Identity
from weightsync_agent.own_pod.status import Said, agent_body, read_pod, report_body, text, turned

POD = Identity("rollout-1", "rl", "uid-1")
NOON, LATER = datetime(2026, 5, 1, 12, tzinfo=UTC), datetime(2026, 5, 1, 13, tzinfo=UTC)
OPEN = Gate(True, "Current", "serves a version", "2026-05-01T12:00:00Z")
IDENTITY = {"name": "rollout-1", "namespace": "rl", "uid": "uid-1"}


def test_annotation_and_condition_stand_in_one_object() -> None:
    """One apply says both, with the pod's uid, and names nothing else of the pod."""
    assert agent_body(POD, Said("{}", OPEN)) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**IDENTITY, "annotations": {"weightsync.io/agent": "{}"}},
        "status": {
            "conditions": [
                {
                    "type": "weightsync.io/WeightsCurrent",
                    "status": "True",
                    "reason": "Current",
                    "message": "serves a version",
                    "lastTransitionTime": "2026-05-01T12:00:00Z",
                }
            ]
        },
    }


def test_what_is_not_said_is_not_in_the_object() -> None:
    """Before the gate is known no condition is made up, and the report carries no more than itself."""
    assert "status" not in agent_body(POD, Said("{}", None))
    assert "annotations" not in agent_body(POD, Said(None, OPEN))["metadata"]
    assert report_body(POD, "{}")["metadata"] == {**IDENTITY, "annotations": {"weightsync.io/report": "{}"}}
    assert "status" not in report_body(POD, "{}")


@pytest.mark.parametrize(
    ("old", "new", "since"),
    [
        pytest.param(None, Gate(True, "Current"), "2026-05-01T13:00:00Z", id="first: now"),
        pytest.param(
            OPEN, Gate(True, "Certified"), "2026-05-01T12:00:00Z", id="same status, other reason: as before"
        ),
        pytest.param(OPEN, Gate(False, "Torn"), "2026-05-01T13:00:00Z", id="other status: now"),
        pytest.param(
            Gate(True, "Old"), Gate(True, "Current"), "2026-05-01T13:00:00Z", id="never said since when: now"
        ),
    ],
)
def test_the_transition_time_turns_with_the_status(old: Gate | None, new: Gate, since: str) -> None:
    """lastTransitionTime is when the status last changed, not when the text did."""
    assert turned(old, new, LATER) == new._replace(since=since)


@pytest.mark.parametrize("reason", ["", "not current", "current", "Cur-rent", "C" * 129])
def test_a_reason_that_the_api_would_refuse_is_refused_here(reason: str) -> None:
    """The caller hears of it at once, not the log a minute later."""
    with pytest.raises(InputError, match="is no reason of a condition"):
        turned(None, Gate(True, reason), NOON)


def test_long_messages_are_cut() -> None:
    """An engine's page-long error does not become part of every pod list."""
    assert len(turned(None, Gate(False, "Torn", "x" * 5000), NOON).message) == 1024


def test_what_was_applied_is_read_back() -> None:
    """A pod that carries our object reads as what was said, among other managers' fields."""
    said = Said(text(Announcement(address="10.0.0.1:8960")), OPEN)
    pod = agent_body(POD, said)
    pod["metadata"]["labels"] = {"app": "rollout"}
    pod["status"]["conditions"].insert(0, {"type": "Ready", "status": "True", "lastTransitionTime": None})
    seen = read_pod(pod)
    assert (seen.labels, seen.said) == ({"app": "rollout"}, said)


def test_a_bare_pod_says_nothing() -> None:
    """No annotation, no condition, no label: nothing is assumed."""
    seen = read_pod({"metadata": {"name": "p"}, "status": {}})
    assert (seen.labels, seen.said) == ({}, Said(None, None))
