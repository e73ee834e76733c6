"""Waiting for a publish, in any thread, and what a trainer learns of each engine."""

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
import torch

from weightsync import EngineOutcome, Outcome, Publisher, PublishFailed
from weightsync.testing import FakeAgent, plain_program
from weightsync.testing.socket_server import SocketServer
from weightsync.version import Version

PROGRAM = plain_program({"w": ("float32", (16,))})
STATE = {"w": torch.ones(16)}
VERSION = Version(lineage="0" * 16, number=1, root="0" * 64)


@pytest.fixture
def agent(volume: Path) -> Iterator[FakeAgent]:
    """One program's agent."""
    with FakeAgent(volume, [PROGRAM]) as made:
        yield made


@pytest.fixture
def publisher(agent: FakeAgent) -> Iterator[Publisher]:
    """The only rank."""
    with Publisher(0, 1, directory=agent.directory, timeout=10) as made:
        yield made


def engine(
    name: str,
    outcome: Literal["Current", "Behind", "Gone", "Failed", "Superseded"],
    reason: str = "",
    message: str = "",
) -> EngineOutcome:
    """One engine."""
    return EngineOutcome(engine=name, outcome=outcome, reason=reason, message=message)


@pytest.mark.parametrize(
    ("engines", "reason", "status", "words"),
    [
        pytest.param([], "", "NoTargets", None, id="no engine is NoTargets"),
        pytest.param([], "NoTargets", "NoTargets", None, id="NoTargets as a reason is the same"),
        pytest.param([engine("a", "Current")], "", "Current", None, id="all current"),
        pytest.param(
            [engine("a", "Gone", "Deleted"), engine("b", "Superseded")], "", "Current", None,
            id="gone and superseded are no failure",
        ),
        pytest.param(
            [engine("a", "Current"), engine("b", "Behind", "DeadlineExceeded", "too slow"), engine("c", "Failed")],
            "",
            "Incomplete",
            "2 of 3 engines do not serve it: b: Behind, DeadlineExceeded: too slow; c: Failed, no reason",
            id="behind and failed are, each by name and reason",
        ),
        pytest.param([engine("a", "Current")], "StaleTerm", "Failed", "StaleTerm: why", id="a reason of its own"),
    ],
)  # fmt: skip
def test_what_an_outcome_means(engines: list[EngineOutcome], reason: str, status: str, words: str | None) -> None:
    """The status, and the sentence of raise_on_failure()."""
    outcome = Outcome(ended=True, engines=tuple(engines), reason=reason, message="why" if reason else "")
    assert outcome.status == status
    if words is not None:
        assert outcome.describe() == words


def test_failed_engines_are_raised_by_name(agent: FakeAgent, publisher: Publisher) -> None:
    """outcome() returns them, raise_on_failure() raises them; both as often as one likes."""
    agent.release_outcomes([engine("rollout-0", "Current"), engine("rollout-1", "Failed", "Torn", "restart it")])
    handle = publisher.publish(STATE, label="step 7")
    assert [e.engine for e in handle.outcome(10).failures] == ["rollout-1"]
    for _ in range(2):
        with pytest.raises(PublishFailed, match=r"step 7: .*rollout-1: Failed, Torn: restart it"):
            handle.raise_on_failure(10)


def test_an_outcome_that_does_not_come_in_time(agent: FakeAgent, publisher: Publisher) -> None:
    """TimeoutError names version and time; a later call still gets it."""
    agent.hold_outcomes()
    handle = publisher.publish(STATE, label="step 1")
    with pytest.raises(TimeoutError, match=r"00aa\.1 step 1 has no outcome .* 0\.05 s"):
        handle.outcome(0.05)
    agent.release_outcomes()
    assert handle.outcome(10).status == "Current"


def test_old_handles_stay_valid(agent: FakeAgent, publisher: Publisher) -> None:
    """Threads wait for several publishes at once, while newer ones run and after the Publisher was closed."""
    agent.hold_outcomes()
    handles = [publisher.publish(STATE) for _ in range(3)]
    found: dict[int, str | None] = {}

    def wait(i: int) -> None:
        outcome = handles[i].outcome(20)
        found[i] = outcome.version.name if outcome.version else None

    threads = [threading.Thread(target=wait, args=(i % 3,)) for i in range(6)]
    for thread in threads:
        thread.start()
    handles.append(publisher.publish(STATE))
    publisher.close()
    agent.release_outcomes()
    for thread in threads:
        thread.join(20)
    assert found == {i: handles[i].version for i in range(3)}
    assert handles[3].outcome(10).status == "Current"


def test_an_agent_that_is_gone_leaves_the_outcome_unknown(agent: FakeAgent, publisher: Publisher) -> None:
    """AgentUnavailable is an outcome, not an exception that ends the training; it is asked again later."""
    handle = publisher.publish(STATE)
    agent.stop()
    outcome = handle.outcome(0.1)
    assert (outcome.status, outcome.reason) == ("Failed", "AgentUnavailable")
    agent.start()
    assert handle.outcome(5).reason == "UnknownPublish"


def test_an_agent_that_does_not_hold_the_poll_is_asked_slowly(volume: Path) -> None:
    """An answer that comes sooner than asked must not become a busy wait."""
    asked: list[float] = []

    def answer(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/v1/connect":
            return 200, b'{"uid": "u", "version": "1"}'
        if path == "/v1/publishes":
            return 200, b'{"id": "p"}'
        if "outcome" in path:
            asked.append(time.monotonic())
            return 200, Outcome(ended=len(asked) == 3, version=VERSION).canonical()
        return 200, b"{}"

    server = SocketServer(volume / "agent.sock", answer)
    try:
        with Publisher(0, 1, directory=volume) as publisher:
            handle = publisher.publish({})
            assert handle.version is None
            handle.outcome(10)
        assert handle.version == VERSION.name
    finally:
        server.stop()
    assert min(b - a for a, b in pairwise(asked)) >= 0.15
