"""The probe against a handshake port that answers as it is told, and the judgement whether a process is gone."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from weightsync.errors import TransferError
from weightsync_agent.transfer.probe import Peer, gone, probe, read, split

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]


def frame(body: bytes, kind: int = 1) -> bytes:
    """A handshake message."""
    return struct.pack("<QB", len(body) + 1, kind) + body


@asynccontextmanager
async def port(answer: Answer) -> AsyncIterator[str]:
    """A handshake port; ``answer`` writes what it says, given its session."""
    sessions: list[str] = []
    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            length, kind = struct.unpack("<QB", await reader.readexactly(9))
            assert (kind, json.loads(await reader.readexactly(length - 1))) == (1, {})
            await answer(reader, writer, sessions[0])
        finally:
            writer.close()
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    sessions.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        yield sessions[0]
        await asyncio.wait(serving, timeout=5)


def says(**changes: object) -> Answer:
    """A whole descriptor, with changes."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter, session: str) -> None:
        body = {"name": session, "tcp_proto_version": 2, "buffers": [{"addr": 4096, "length": 100}], **changes}
        writer.write(frame(json.dumps(body).encode() + b"\n"))

    return answer


def raw(data: bytes) -> Answer:
    """These bytes, then the end."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter, session: str) -> None:
        assert session
        writer.write(data)

    return answer


hangs_up = raw(b"")


async def silent(reader: asyncio.StreamReader, *_: object) -> None:
    """Like a stopped process: the kernel takes the connection, nobody answers, until the caller has given up."""
    await reader.read()


async def test_descriptor_is_read() -> None:
    """A running worker's answer gives its session, its protocol version and its regions."""
    async with port(says()) as session:
        assert await probe(session, 5) == Peer(session, 2, ((4096, 100),))


@pytest.mark.parametrize(
    ("answer", "reason", "part"),
    [
        pytest.param(silent, "Unreachable", "no answer within 0.1 s", id="a stopped process is told by the deadline"),
        pytest.param(hangs_up, "Unreachable", "before that it was cut off: 0 bytes", id="a process that hangs up"),
        pytest.param(raw(frame(b"{}", kind=3)), "Unreachable", "no descriptor", id="another kind of answer"),
        pytest.param(raw(frame(b"no json")), "Unreachable", "cannot be reached", id="no JSON"),
        pytest.param(raw(frame(b"[]")), "Unreachable", "no descriptor", id="JSON that is no object"),
        pytest.param(raw(struct.pack("<QB", 1 << 40, 1)), "Unreachable", "no descriptor", id="an absurd length"),
        pytest.param(
            says(name="127.0.0.1:1"), "Unreachable", "worker 127.0.0.1:1 answers", id="a stranger on the port"
        ),
        pytest.param(
            says(tcp_proto_version=1), "ProtocolTooOld", "version 1", id="a protocol without acknowledgement"
        ),
        pytest.param(says(buffers=[{"addr": 1}]), "Unreachable", "length", id="a region without a length"),
    ],
)
async def test_bad_answer_is_an_error_of_ours(answer: Answer, reason: str, part: str) -> None:
    """Whatever answers, the caller gets a TransferError that says what; nothing was written, so it is quiet."""
    async with port(answer) as session:
        with pytest.raises(TransferError, match=part) as caught:
            await probe(session, 0.1 if answer in {silent, hangs_up} else 5)
    assert (caught.value.reason, caught.value.quiet) == (reason, True)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def test_nobody_there() -> None:
    """A refused connection: unreachable at once, and the process is known to be gone."""
    session = f"127.0.0.1:{free_port()}"
    with pytest.raises(TransferError, match="cannot be reached"):
        await probe(session, 5)
    assert await gone(session, 5)


async def test_one_that_was_cut_off_asks_again() -> None:
    """Mooncake drops a caller that waited while it served others."""
    asked: list[str] = []

    async def second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: str) -> None:
        asked.append(session)
        if len(asked) > 1:
            await says()(reader, writer, session)

    async with port(second) as session:
        assert (await probe(session, 5)).session == session
    assert len(asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(says(), id="a process that answers"),
        pytest.param(silent, id="a process that is stopped"),
        pytest.param(raw(b""), id="a process that resets for the whole deadline"),
        pytest.param(raw(frame(b"no json")), id="a process that answers nonsense"),
    ],
)
async def test_not_known_to_be_gone(answer: Answer) -> None:
    """Only a refused connection proves that a process has ended; everything else leaves the region open."""
    async with port(answer) as session:
        assert not await gone(session, 0.2)


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        pytest.param("10.0.0.1:15000", ("10.0.0.1", 15000), id="IPv4"),
        pytest.param("[fd00::1]:15000", ("fd00::1", 15000), id="IPv6 in brackets"),
    ],
)
def test_split(session: str, expected: tuple[str, int]) -> None:
    """A session is host and port."""
    assert split(session) == expected


@pytest.mark.parametrize("session", ["", "host", "host:", ":1", "host:port"])
def test_split_refuses(session: str) -> None:
    """Anything else is an error before a socket is opened."""
    with pytest.raises(TransferError, match="is not host:port"):
        split(session)


@pytest.mark.parametrize(
    ("address", "nbytes", "held"),
    [
        pytest.param(100, 50, True, id="a whole region"),
        pytest.param(120, 30, True, id="the end of a region"),
        pytest.param(120, 31, False, id="one byte over the end"),
        pytest.param(99, 10, False, id="one byte before the start"),
        pytest.param(140, 20, False, id="across two adjacent regions"),
    ],
)
def test_holds(address: int, nbytes: int, held: bool) -> None:
    """A write must lie within one region, as Mooncake checks it."""
    peer = read({"name": "s", "buffers": [{"addr": 100, "length": 50}, {"addr": 150, "length": 50}]}, "s")
    assert peer.holds(address, nbytes) is held
    assert peer.tcp_protocol == 1
