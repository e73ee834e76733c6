"""Reading what the API and the trainer's log say."""

from typing import Any

from tools.demo.watching import json_lines, read_pod


def test_lines_that_are_no_event_are_left_out() -> None:
    """Warnings, traces and broken lines stand between the trainer's own."""
    lines = ["Warning: x", '{"event": "step", "unix_ms": 1}', '{"half', '{"no": "event"}', "[1]"]
    assert list(json_lines(iter(lines))) == [{"event": "step", "unix_ms": 1}]


def pod(**status: Any) -> dict[str, Any]:
    metadata = {"name": "e0", "labels": {"app": "rollout"}, "creationTimestamp": "1970-01-01T00:00:02Z"}
    return {"metadata": metadata, "status": status}


def test_a_pod_with_an_open_gate() -> None:
    """Gate, its transition, readiness and creation, in milliseconds since 1970."""
    gate = {"type": "weightsync.io/WeightsCurrent", "status": "True", "lastTransitionTime": "1970-01-01T00:00:05Z"}
    seen = read_pod(pod(conditions=[gate, {"type": "Ready", "status": "False"}]), "MODIFIED", 9)
    assert (seen.gate, seen.gate_ms, seen.created_ms, seen.at_ms, seen.ready) == (True, 5000, 2000, 9, False)
    assert not seen.gone


def test_a_pod_that_cannot_start_says_why() -> None:
    """In the words of the container that waits; an ordinary start is no problem."""
    waiting = {"name": "engine", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}}
    assert read_pod(pod(phase="Pending", containerStatuses=[waiting]), "ADDED", 1).note == (
        "engine: ErrImagePull no such host"
    )
    usual = {"name": "engine", "state": {"waiting": {"reason": "PodInitializing"}}}
    assert read_pod(pod(phase="Pending", containerStatuses=[usual]), "ADDED", 1).note == "Pending"
    assert read_pod(pod(), "DELETED", 1).gone
