"""The link keeps one connection, survives an agent that restarts, and turns every failure into a sentence."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weightsync.errors import AgentUnavailable, PeerError, Refused, WeightSyncError
from weightsync.publisher.link import Link
from weightsync.testing.socket_server import SocketServer
from weightsync.wire.local import BeginAnswer, Copied
from weightsync.wire.v1 import Problem

Answer = tuple[int, bytes] | None
OK = (200, b'{"id": "p1"}')


class Script:
    """A listener that gives prepared answers, then OK, and remembers what was asked on how many connections."""

    def __init__(self, volume: Path) -> None:
        self.path = volume / "agent.sock"
        self.answers: list[Answer] = []
        self.asked: list[str] = []
        self.server: SocketServer | None = None

    def start(self) -> None:
        """Listen."""
        self.server = SocketServer(self.path, self._answer)

    def stop(self) -> None:
        """Stop and break all connections off."""
        if self.server is not None:
            self.server.stop()
            self.server = None

    def _answer(self, method: str, path: str, body: bytes) -> Answer:
        self.asked.append(f"{method} {path}")
        return self.answers.pop(0) if self.answers else OK


@pytest.fixture
def script(volume: Path) -> Iterator[Script]:
    """A running one."""
    made = Script(volume)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def link(volume: Path) -> Iterator[Link]:
    """To the volume's socket."""
    with Link(volume, timeout=5, patience=0.3) as made:
        yield made


def ask(link: Link) -> BeginAnswer:
    """One request."""
    return link.post("/v1/x", Copied(), BeginAnswer)


def test_requests_share_a_connection(script: Script, link: Link) -> None:
    """Connecting anew for each report of filled buckets would cost more than the report."""
    ask(link)
    first = link.connect()
    ask(link)
    link.get("/v1/y", BeginAnswer, timeout=1)
    assert link.connect() is first
    assert script.asked == ["POST /v1/x", "POST /v1/x", "GET /v1/y"]


def test_a_kept_connection_that_was_closed_is_replaced(script: Script, link: Link) -> None:
    """The agent restarted between two publishes: the request is sent once more."""
    ask(link)
    script.stop()
    script.start()
    assert ask(link).id == "p1"


def test_a_request_is_sent_again_only_once(script: Script, link: Link) -> None:
    """An agent that breaks every connection off is reported, not asked for ever."""
    ask(link)
    script.answers = [None, None]
    with pytest.raises(AgentUnavailable, match="broke off POST /v1/x"):
        ask(link)
    assert len(script.asked) == 3


def test_a_new_connection_that_breaks_is_not_stale(script: Script, link: Link) -> None:
    """Nothing was ever answered on it, so nothing tells that sending again would help."""
    script.answers = [None]
    with pytest.raises(AgentUnavailable):
        ask(link)
    assert len(script.asked) == 1
    assert ask(link).id == "p1"


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        pytest.param(
            (409, Problem(reason="StaleTerm", message="too old").canonical()), Refused, "^too old$", id="a refusal"
        ),
        pytest.param(
            (500, Problem(reason="Failed", message="disk full").canonical()),
            PeerError,
            "failed at POST /v1/x: disk full",
            id="a failure",
        ),
        pytest.param((502, b"<html>"), PeerError, "status 502 and no reason", id="no problem document"),
        pytest.param((200, b"[]"), WeightSyncError, "answer to /v1/x", id="an answer of another form"),
    ],
)  # fmt: skip
def test_what_an_answer_becomes(
    script: Script, link: Link, answer: Answer, kind: type[WeightSyncError], words: str
) -> None:
    """A refusal keeps the agent's own sentence; the connection stays good for the next request."""
    script.answers = [answer]
    with pytest.raises(kind, match=words):
        ask(link)
    assert ask(link).id == "p1"


def test_a_refusal_carries_reason_and_status(script: Script, link: Link) -> None:
    """So that callers can tell them apart without reading sentences."""
    script.answers = [(404, Problem(reason="UnknownPublish", message="gone").canonical())]
    with pytest.raises(Refused) as caught:
        ask(link)
    assert (caught.value.reason, caught.value.status) == ("UnknownPublish", 404)


def test_an_answer_that_does_not_come(volume: Path) -> None:
    """The message names the socket, the request and the time; the late answer is nobody's any more."""
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(volume / "agent.sock"))
        mute.listen()
        with Link(volume, timeout=0.1, patience=0) as link, pytest.raises(AgentUnavailable) as caught:
            ask(link)
    assert str(volume / "agent.sock") in str(caught.value)
    assert "POST /v1/x within 0.1 s" in str(caught.value)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        pytest.param(lambda path: None, "No such file", id="no socket"),
        pytest.param(lambda path: socket.socket(socket.AF_UNIX).bind(str(path)), "refused", id="nobody listens"),
        pytest.param(lambda path: path.write_text(""), "refused", id="a file in its place"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the socket that is bound and dropped
def test_no_agent(volume: Path, link: Link, prepare: Callable[[Path], object], words: str) -> None:
    """The message names the path, what happened and what to do."""
    prepare(volume / "agent.sock")
    link.patience = 0
    with pytest.raises(AgentUnavailable, match=words) as caught:
        ask(link)
    assert str(volume / "agent.sock") in str(caught.value)
    assert "WEIGHTSYNC_DIR" in str(caught.value)


def test_a_path_that_is_too_long(volume: Path) -> None:
    """The system's limit on a socket's path is said, not raised as something else."""
    with Link(volume / ("x" * 120), timeout=1, patience=0) as link, pytest.raises(AgentUnavailable, match="too long"):
        ask(link)


def test_an_agent_that_is_late_is_waited_for(volume: Path) -> None:
    """Within its patience the link dials again until somebody listens."""
    script = Script(volume)
    later = threading.Timer(0.15, script.start)
    later.start()
    try:
        with Link(volume, timeout=5, patience=30) as link:
            began = time.monotonic()
            assert ask(link).id == "p1"
            assert time.monotonic() - began < 30
    finally:
        later.join()
        script.stop()


def test_every_new_connection_begins_with_the_greeting(script: Script, volume: Path) -> None:
    """A restarted agent does not know the rank before it is greeted."""
    greet = [(200, b"{}")]
    with Link(volume, timeout=5, patience=5, greet=lambda link: link.tell("/v1/hello", Copied())) as link:
        script.answers = [*greet, OK, OK]
        ask(link)
        ask(link)
        script.stop()
        script.start()
        ask(link)
    assert script.asked == ["POST /v1/hello", "POST /v1/x", "POST /v1/x", "POST /v1/hello", "POST /v1/x"]


def test_nothing_is_sent_where_the_greeting_was_refused(script: Script, volume: Path) -> None:
    """The next request greets again."""
    with Link(volume, timeout=5, patience=5, greet=lambda link: link.tell("/v1/hello", Copied())) as link:
        script.answers = [(409, Problem(reason="Refused", message="who?").canonical())]
        with pytest.raises(Refused, match="who"):
            ask(link)
        assert script.asked == ["POST /v1/hello"]
        ask(link)
    assert script.asked[1:] == ["POST /v1/hello", "POST /v1/x"]
