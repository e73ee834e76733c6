"""What the API server's answers mean for a retry."""

import json

import pytest

from weightsync.errors import Refused
from weightsync_agent.own_pod.problems import problem, unreachable

UID = "Precondition failed: UID in precondition: a, UID in object meta: b"


@pytest.mark.parametrize(
    ("status", "reason", "message", "retryable", "words"),
    [
        pytest.param(500, "InternalError", "boom", True, "500 InternalError: boom", id="a server's fault passes"),
        pytest.param(503, "", "", True, "answered 503", id="a restarting server comes back"),
        pytest.param(429, "TooManyRequests", "later", True, "429", id="a loaded server has time later"),
        pytest.param(401, "Unauthorized", "Unauthorized", True, "401", id="a stale token is renewed"),
        pytest.param(403, "Forbidden", "no right", True, "no right", id="a role can still be bound"),
        pytest.param(409, "Conflict", "modified", True, "modified", id="a race of writers is run again"),
        pytest.param(409, "Conflict", UID, False, "pod has been replaced", id="another pod of that name is final"),
        pytest.param(422, "Invalid", "metadata.uid: x", False, "pod has been replaced", id="a changed uid is final"),
        pytest.param(422, "Invalid", "denied: labels", False, "denied: labels", id="a policy's denial is final"),
        pytest.param(404, "NotFound", 'pods "p" not found', False, "are the CRDs installed", id="not found is final"),
        pytest.param(410, "Expired", "too old", False, "too old", id="an old resource version is final"),
    ],
)
def test_answers(status: int, reason: str, message: str, retryable: bool, words: str) -> None:
    """Retryable where the same call can succeed later; the sentence carries the server's own words."""
    error = problem("PATCH /p", status, json.dumps({"reason": reason, "message": message}).encode())
    assert error.retryable is retryable
    assert isinstance(error, Refused) is not retryable
    assert words in str(error)
    assert str(error).startswith("PATCH /p: the API server answered")


def test_an_answer_that_is_no_status_object_is_quoted() -> None:
    """A proxy's page is cut, not dropped."""
    assert str(problem("GET /p", 502, b"<html>" + b"x" * 5000)).endswith("xxx")
    assert len(str(problem("GET /p", 502, b"<html>" + b"x" * 5000))) < 300
    assert "[1]" in str(problem("GET /p", 502, b"[1]"))


def test_no_answer_is_retryable() -> None:
    """An error without words is named by its type."""
    assert str(unreachable("GET /p", TimeoutError())) == "GET /p: the API server cannot be reached: TimeoutError"
    assert unreachable("GET /p", OSError("refused")).retryable
