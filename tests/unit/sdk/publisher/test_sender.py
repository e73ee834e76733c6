"""Filled buckets reach the agent in order, in batches, without keeping whoever fills waiting."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from weightsync.errors import AgentUnavailable, Refused
from weightsync.publisher.link import Link
from weightsync.publisher.sender import Sender
from weightsync.testing.socket_server import SocketServer
from weightsync.wire.v1 import Problem

A, B = "a" * 32, "b" * 32


class Gate:
    """An agent that takes reports while its gate is open, and can refuse."""

    def __init__(self, volume: Path) -> None:
        self.open = threading.Event()
        self.open.set()
        self.arrived = threading.Semaphore(0)
        self.refusal: str = ""
        self.taken: list[tuple[str, str, list[int]]] = []
        self.server = SocketServer(volume / "agent.sock", self._answer)

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        self.arrived.release()
        self.open.wait(10)
        if self.refusal:
            return 409, Problem(reason="Refused", message=self.refusal).canonical()
        report = json.loads(body)
        self.taken.append((path.split("/")[3], report["program"], report["offsets"]))
        return 200, b"{}"


@pytest.fixture
def gate(volume: Path) -> Iterator[Gate]:
    """Listening."""
    made = Gate(volume)
    yield made
    made.open.set()
    made.server.stop()


@pytest.fixture
def sender(volume: Path, gate: Gate) -> Iterator[Sender]:
    """To the gate."""
    made = Sender(Link(volume, timeout=10, patience=1))
    yield made
    made.close()


def test_reports_arrive_in_order(gate: Gate, sender: Sender) -> None:
    """flush() returns when the agent has all of them, by program, each in the order in which it was filled."""
    reports = sender.open("p1")
    sender.put(reports, A, [(0, ""), (16, "")])
    sender.put(reports, B, [(8, "")])
    sender.put(reports, A, [(4, "")])
    sender.flush(reports)
    assert [o for _, program, offsets in gate.taken if program == A for o in offsets] == [0, 16, 4]
    assert [o for _, program, offsets in gate.taken if program == B for o in offsets] == [8]


def test_what_becomes_full_during_a_request_goes_into_the_next(gate: Gate, sender: Sender) -> None:
    """put() never waits: one request is under way, everything else is one batch behind it."""
    gate.open.clear()
    reports = sender.open("p1")
    sender.put(reports, A, [(0, "")])
    assert gate.arrived.acquire(timeout=10)
    for offset in range(1, 50):
        sender.put(reports, A, [(offset, "")])
    gate.open.set()
    sender.flush(reports)
    assert gate.taken == [("p1", A, [0]), ("p1", A, list(range(1, 50)))]


def test_a_refusal_ends_the_reports_of_that_publish_only(gate: Gate, sender: Sender) -> None:
    """flush() raises it; later buckets are not sent; the next publish starts afresh."""
    gate.refusal = "no such bucket"
    reports = sender.open("p1")
    sender.put(reports, A, [(0, "")])
    with pytest.raises(Refused, match="no such bucket"):
        sender.flush(reports)
    gate.refusal = ""
    sender.put(reports, A, [(1, "")])
    following = sender.open("p2")
    sender.put(following, A, [(2, "")])
    sender.flush(following)
    assert gate.taken == [("p2", A, [2])]


def test_nothing_is_sent_after_a_publish_was_abandoned(gate: Gate, sender: Sender) -> None:
    """abandon() waits for the request under way and drops the rest."""
    gate.open.clear()
    reports = sender.open("p1")
    sender.put(reports, A, [(0, "")])
    assert gate.arrived.acquire(timeout=10)
    sender.put(reports, A, [(1, "")])
    assert not sender.abandon(reports, 0.01)
    gate.open.set()
    assert sender.abandon(reports, 10)
    following = sender.open("p2")
    sender.put(following, A, [(2, "")])
    sender.flush(following)
    assert gate.taken == [("p1", A, [0]), ("p2", A, [2])]


def test_flush_does_not_wait_for_a_closed_sender(gate: Gate, volume: Path) -> None:
    """close() ends the thread; reports that it left are an error to whoever waits for them."""
    sender = Sender(Link(volume, timeout=10, patience=1))
    reports = sender.open("p1")
    sender.close()
    sender.put(reports, A, [(0, "")])
    with pytest.raises(AgentUnavailable, match="closed"):
        sender.flush(reports)
    sender.close()
    assert gate.taken == []


def test_an_agent_that_is_gone_is_an_error_of_flush(gate: Gate, volume: Path) -> None:
    """The sender's thread survives it."""
    sender = Sender(Link(volume, timeout=10, patience=0))
    gate.server.stop()
    reports = sender.open("p1")
    sender.put(reports, A, [(0, "")])
    with pytest.raises(AgentUnavailable, match="no agent listens"):
        sender.flush(reports)
    sender.close()
