"""Bodies that are too large, never end, drip in or unfold: ended in time, in bounded memory, by a refusal."""

import itertools
import socket
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest

from tests.fuzz.running import HANG, SECRET, Running
from weightsync_agent.peers import server
from weightsync_agent.peers.server import MAX_VALUES, SMALL_VALUES

LIMIT = 200_000  # in place of the real bounds, so that the tests take little


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower bounds: the code that keeps them is the same."""
    monkeypatch.setattr(server, "SMALL_BODY", LIMIT)
    monkeypatch.setattr(server, "MAX_BODY", 2 * LIMIT)
    monkeypatch.setattr(server, "BODY_SECONDS", 0.3)


def begin(path: str, *headers: str, proof: str = SECRET) -> bytes:
    """The head of a request."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {proof}", *headers, "", ""]
    return "\r\n".join(lines).encode()


def chunks(size: int = 16_384) -> Iterator[bytes]:
    """A chunked body without an end."""
    while True:
        yield f"{size:x}\r\n".encode() + b"[" * size + b"\r\n"


def pour(agent: Running, head: bytes, parts: Iterator[bytes], pause: float = 0.0) -> tuple[bytes, int, float]:
    """Send until the agent answers or closes: its answer, the bytes that it took, the seconds."""
    sent, start = 0, time.monotonic()
    with socket.create_connection(("127.0.0.1", agent.port), timeout=HANG) as connection:
        connection.sendall(head)
        connection.settimeout(pause or 0.001)
        answer = b""
        for part in parts:
            try:
                answer = connection.recv(65536)
                break
            except TimeoutError:
                pass
            connection.settimeout(HANG)
            connection.sendall(part)
            sent += len(part)
            connection.settimeout(pause or 0.001)
            assert time.monotonic() - start < HANG
    return answer, sent, time.monotonic() - start


@pytest.mark.parametrize(
    ("path", "limit"),
    [pytest.param("/v1/grants", LIMIT, id="small"), pytest.param("/v1/receipts", 2 * LIMIT, id="large")],
)
def test_a_body_without_end_is_ended_by_its_size(engine: Running, path: str, limit: int) -> None:
    """413 soon after the bound; what is kept in memory meanwhile stays near it."""
    engine.alive()
    tracemalloc.start()
    try:
        answer, sent, _ = pour(engine, begin(path, "Transfer-Encoding: chunked"), chunks())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert b"BodyTooLarge" in answer
    assert sent < limit + 3_000_000  # what the sockets' buffers hold is on its way before the answer is seen
    assert peak < 3 * limit + 2_000_000
    engine.alive()


def test_a_body_that_drips_in_is_ended_by_time(engine: Running) -> None:
    """408, whether its length was said or not."""
    for header in ("Transfer-Encoding: chunked", "Content-Length: 100000"):
        drops = itertools.repeat(b"1\r\n[\r\n" if "chunked" in header else b"[")
        answer, _, seconds = pour(engine, begin("/v1/grants", header), drops, pause=0.02)
        assert b" 408 " in answer.split(b"\r\n")[0]
        assert seconds < HANG / 2
    engine.alive()


@pytest.mark.parametrize("length", [LIMIT + 1, 10**12, 2**63])
def test_a_body_that_says_that_it_is_too_large_is_refused_unread(engine: Running, length: int) -> None:
    """413 before a byte of it is sent."""
    answer = engine.raw(begin("/v1/grants", f"Content-Length: {length}"))
    assert b" 413 " in answer.split(b"\r\n")[0]
    engine.alive()


def test_a_stranger_is_refused_before_its_body_is_read(engine: Running) -> None:
    """401 at once, for however much was announced."""
    answer = engine.raw(begin("/v1/receipts", "Transfer-Encoding: chunked", proof="x" * 32))
    assert b" 401 " in answer.split(b"\r\n")[0]


def test_a_body_that_would_unfold_is_taken_as_it_is(engine: Running) -> None:
    """Compressed zeros are no JSON: 400, and never a gigabyte."""
    packed = zlib.compress(b" " * 50_000_000, 9)[:LIMIT]
    tracemalloc.start()
    try:
        answer = engine.raw(
            begin("/v1/grants", "Content-Encoding: deflate", f"Content-Length: {len(packed)}") + packed
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert peak < 5_000_000
    engine.alive()


def test_a_body_that_breaks_off_is_no_bug(engine: Running) -> None:
    """Callers die in the middle: nothing is logged as an error, and the agent goes on."""
    for header in ("Transfer-Encoding: chunked", "Content-Length: 1000"):
        with socket.create_connection(("127.0.0.1", engine.port), timeout=HANG) as connection:
            connection.sendall(begin("/v1/grants", header) + b"5\r\n[[[[[\r\n")
        engine.alive()


WORST = """
import resource, sys, time
from weightsync.wire import v1
kind, count, text = getattr(v1, sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
body = b'{"%s":[' % sys.argv[4].encode() + text * count + b"null]}"
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
try:
    kind.model_validate_json(body)
except ValueError as error:
    error.errors(include_url=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.process_time() - start)
"""


@pytest.mark.parametrize(
    ("kind", "field", "text", "values", "most"),
    [
        pytest.param("NamesRequest", "names", '"",', MAX_VALUES, 2**29, id="the most names"),
        pytest.param("NamesRequest", "names", "[],", MAX_VALUES // 2, 2**29, id="the most lists for names"),
        pytest.param("Receipts", "buckets", "{},", MAX_VALUES // 2, 2**29, id="the most objects for buckets"),
        pytest.param("VoidRequest", "writers", "{},", SMALL_VALUES // 2, 2**26, id="the most writers without names"),
        pytest.param("Problem", "unknown", "{},", SMALL_VALUES // 2, 2**26, id="the most of what nobody looks for"),
    ],
)
def test_the_largest_bodies_fit_into_an_agent(kind: str, field: str, text: str, values: int, most: int) -> None:
    """What parsing adds to a process at most, in bytes, its extensions' memory included."""
    command = [sys.executable, "-c", WORST, kind, str(values), text, field]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    kilobytes, seconds = run.stdout.split()
    assert int(kilobytes) * 1024 < most
    assert float(seconds) < 20  # a second or two; a machine that tests is slow at times


def test_a_body_of_too_many_values_is_refused_unparsed(engine: Running) -> None:
    """413: what is small on the wire must not become large here."""
    body = b'{"writers":[' + b"{}," * SMALL_VALUES + b"{}]}"
    answer = engine.ask("POST", "/v1/void", body)
    answer.check(body)
    assert answer.status == 413
    engine.alive()
