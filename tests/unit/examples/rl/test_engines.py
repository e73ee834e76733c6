"""Requests against a real HTTP server whose behaviour each test writes down."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from rl.engines import Engines, EnginesUnavailable, Question, RequestRefused

QUESTION = Question([[1, 2], [3, 4]], [{"temperature": 0.0}, {"temperature": 0.0}], logprobs=True)
Reply = tuple[int, Any] | None  # None: the connection is cut


def one(engine: str, tokens: list[int], version: str = "a.1", finish: str = "length") -> dict[str, Any]:
    meta = {
        "engine": engine,
        "finish_reason": {"type": finish},
        "spans": [[version, len(tokens)]],
        "output_token_logprobs": [[-0.5, token, None] for token in tokens],
    }
    return {"output_ids": tokens, "meta_info": meta}


class Server:
    """Answers the n-th request with the n-th reply, the last one from then on."""

    def __init__(self, replies: list[Reply], seen: Callable[[], None]) -> None:
        self.bodies: list[Any] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                seen()
                reply = replies[min(len(server.bodies), len(replies)) - 1]
                if reply is None:
                    self.connection.close()
                    return
                self.send_response(reply[0])
                self.end_headers()
                self.wfile.write(json.dumps(reply[1]).encode())

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.handle_error = lambda *_: None  # type: ignore[method-assign] # connections that were cut
        Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return self.http.server_address[1]


Make = Callable[..., tuple[Server, Engines]]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[tuple[Server, Engines]] = []

    def start(
        *replies: Reply,
        floors: dict[str, int] | None = None,
        seen: Callable[[], None] = lambda: None,
        **settings: float,
    ) -> tuple[Server, Engines]:
        server = Server(list(replies), seen)
        engines = Engines("127.0.0.1", server.port, lambda: floors or {}, **settings)  # type: ignore[arg-type]
        made.append((server, engines))
        return server, engines

    yield start
    for server, engines in made:
        engines.close()
        server.http.shutdown()
        server.http.server_close()


def test_answers_carry_engine_spans_and_log_probabilities(make: Make) -> None:
    """What the engine says, beside the prompt that was asked."""
    server, engines = make((200, [one("e0", [5, 6]), one("e0", [7, 8], "a.2")]))
    first, second = engines.ask(QUESTION).result(20)
    assert (first.engine, first.prompt, first.tokens, first.logprobs) == ("e0", (1, 2), (5, 6), (-0.5, -0.5))
    assert [(span.version, span.tokens) for span in second.spans] == [("a.2", 2)]
    assert server.bodies[0]["input_ids"] == [[1, 2], [3, 4]]
    assert server.bodies[0]["return_logprob"] is True


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(None, id="the engine dies in the middle of a request"),
        pytest.param((503, {"error": "leaving"}), id="the engine is shutting down"),
        pytest.param(
            (200, [one("e0", [5], finish="abort"), one("e0", [])]), id="the engine aborts what it has begun"
        ),
    ],
)
def test_a_failed_request_is_sent_again(make: Make, failure: Reply) -> None:
    """As it was, and its answer counts as one."""
    server, engines = make(failure, (200, [one("e1", [5]), one("e1", [6])]))
    assert [answer.engine for answer in engines.ask(QUESTION).result(20)] == ["e1", "e1"]
    assert server.bodies[0] == server.bodies[1]
    assert engines.repeated == 1


def test_patience_is_bounded_and_the_error_says_what_was_tried(make: Make) -> None:
    """No engine for as long as it was to be waited: the address, the tries and the last problem."""
    _, engines = make((503, {"error": "leaving"}), patience_seconds=0.2)
    with pytest.raises(EnginesUnavailable, match=r"127\.0\.0\.1.*tries.*503.*leaving"):
        engines.ask(QUESTION).result(20)


def test_a_wrong_request_is_not_sent_again(make: Make) -> None:
    """4xx is the caller's fault."""
    server, engines = make((400, {"error": "too long"}))
    with pytest.raises(RequestRefused, match="too long"):
        engines.ask(QUESTION).result(20)
    assert len(server.bodies) == 1


def test_the_floor_is_what_was_known_when_the_request_was_sent(make: Make) -> None:
    """An outcome that arrives while the request is under way does not bind its answer."""
    floors = {"e0": 1}
    _, engines = make(
        (200, [one("e0", [5]), one("e9", [6])]), floors=floors, seen=lambda: floors.update({"e0": 2, "e9": 2})
    )
    assert [answer.floor for answer in engines.ask(QUESTION).result(20)] == [1, 0]
