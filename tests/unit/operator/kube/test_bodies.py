"""What is sent, asserted without a server."""

import pytest

from tests.build import manifests
from weightsync.api.v1alpha1.slice import SliceSpec
from weightsync.api.v1alpha1.status import WeightSyncStatus
from weightsync_operator import observe
from weightsync_operator.kube import apply_slices, apply_status, errors, events, paths
from weightsync_operator.kube.lease import record_of, spec_of
from weightsync_operator.observe import Seen
from weightsync_operator.planning.notices import Notice
from weightsync_operator.planning.slicing import Slice


@pytest.fixture
def seen() -> Seen:
    made = manifests.weightsync()
    made["metadata"] |= {"namespace": "rl", "uid": "u1", "resourceVersion": "42", "generation": 1}
    return observe.weightsync(made)


def test_a_status_is_conditional(seen: Seen) -> None:
    """uid and resourceVersion go along: a stale operator is refused by the server."""
    meta = apply_status.body(seen, WeightSyncStatus())["metadata"]
    assert (meta["uid"], meta["resourceVersion"]) == ("u1", "42")


def test_a_slice_is_owned_and_holds_nothing_back(seen: Seen) -> None:
    """The garbage collector deletes it with its owner, for which no right on finalizers is needed."""
    body = apply_slices.body(seen, Slice("policy-1", SliceSpec()))
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("u1", True, False)
    assert body["spec"] == {}


@pytest.mark.parametrize(("letter", "kept"), [("x", 1024), ("é", 512), ("€", 341)])
def test_an_event_is_about_the_object(seen: Seen, letter: str, kept: int) -> None:
    """The note is cut to what the API takes, which counts bytes."""
    body = events.body(seen, Notice("Warning", "NoSources", "Report", letter * 2000), "now", "operator-1")
    assert body["regarding"]["uid"] == "u1"
    assert body["note"] == letter * kept


@pytest.mark.parametrize(
    ("status", "reason", "kind", "retryable"),
    [
        (409, "AlreadyExists", errors.AlreadyExists, False),
        (409, "Conflict", errors.Conflict, True),
        (404, "NotFound", errors.NotFound, False),
        (403, "Forbidden", errors.Forbidden, False),
        (401, "Unauthorized", errors.Unavailable, True),
        (429, "TooManyRequests", errors.Unavailable, True),
        (422, "Invalid", errors.KubeError, False),
        (500, "InternalError", errors.Unavailable, True),
        (503, "", errors.Unavailable, True),
    ],
)
def test_answers_become_errors(status: int, reason: str, kind: type[errors.KubeError], retryable: bool) -> None:
    """Whether another try can help follows from the status; the server's sentence is kept."""
    error = errors.error_of("GET /x", status, f'{{"reason": "{reason}", "message": "its words"}}'.encode())
    assert type(error) is kind
    assert error.retryable is retryable
    assert str(error) == f"GET /x: {status} its words"


def test_a_webhook_that_is_away_is_a_refusal() -> None:
    """Nobody would learn of it else: a server that is busy is waited for in silence."""
    body = b'{"reason": "InternalError", "message": "Internal error: failed calling webhook x.example: refused"}'
    assert not errors.error_of("POST /x", 500, body).retryable


def test_an_answer_that_is_no_status_is_quoted() -> None:
    """A proxy's page is shown, shortened."""
    assert str(errors.error_of("GET /x", 502, b"<html>bad gateway")) == "GET /x: 502 <html>bad gateway"


def test_a_lease_survives_a_round_trip() -> None:
    """Times go out in UTC and come back as what the election compares; an empty holder is nobody."""
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "acquireTime": "2026-01-01T00:00:00.000000Z"}
    spec["renewTime"] = "2026-01-01T00:00:05.000000Z"
    assert spec_of(record_of(spec), 3) == spec | {"leaseTransitions": 3}
    assert record_of({"holderIdentity": ""}).holder_identity is None


def test_paths() -> None:
    """One namespace or all of them."""
    assert paths.pods() == "/api/v1/pods"
    assert paths.weightsync("rl", "p") == "/apis/weightsync.io/v1alpha1/namespaces/rl/weightsyncs/p"
