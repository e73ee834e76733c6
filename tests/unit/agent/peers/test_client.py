"""Asking another agent: whole answers, and every failure a PeerError."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from weightsync.errors import InputError, PeerError, Refused
from weightsync.wire.v1 import Accepted, Problem
from weightsync_agent.peers.client import PeerClient, Unreachable

LARGE = b"x" * (8 << 20)


async def large(request: web.Request) -> web.Response:
    return web.Response(body=LARGE)


async def no(request: web.Request) -> web.Response:
    return web.json_response(text=Problem(reason="Busy", message="ask again").model_dump_json(), status=503)


async def nobody() -> dict[str, str]:
    return {}


async def no_token() -> dict[str, str]:
    raise InputError("/token: cannot be read")


@pytest.fixture
async def address() -> AsyncIterator[str]:
    application = web.Application()
    application.add_routes([web.get("/large", large), web.get("/no", no)])
    async with TestServer(application) as server:
        yield f"{server.host}:{server.port}"


@pytest.fixture
async def client() -> AsyncIterator[Callable[[Callable[[], Awaitable[dict[str, str]]]], Awaitable[PeerClient]]]:
    made: list[PeerClient] = []

    async def make(headers: Callable[[], Awaitable[dict[str, str]]]) -> PeerClient:
        made.append(PeerClient(headers))
        await made[-1].start()
        return made[-1]

    yield make
    for each in made:
        await each.close()


async def test_a_large_answer_comes_whole(address: str, client) -> None:  # type: ignore[no-untyped-def]
    """A copy program of a real model has megabytes: none is lost."""
    assert await (await client(nobody)).text(address, "/large", seconds=10) == LARGE


async def test_a_refusal_carries_the_peers_reason(address: str, client) -> None:  # type: ignore[no-untyped-def]
    """Reason, sentence and status of the other side."""
    with pytest.raises(Refused, match="ask again") as caught:
        await (await client(nobody)).call(address, "/no", Accepted, seconds=10)
    assert (caught.value.reason, caught.value.status) == ("Busy", 503)


async def test_nobody_there_is_unreachable(client) -> None:  # type: ignore[no-untyped-def]
    """A refused connection: the request had no answer."""
    with pytest.raises(Unreachable):
        await (await client(nobody)).text("127.0.0.1:1", "/", seconds=2)


async def test_a_missing_token_is_a_failure_of_the_exchange(address: str, client) -> None:  # type: ignore[no-untyped-def]
    """Whoever asks handles one kind of error: no machine waits for an answer that never comes."""
    with pytest.raises(PeerError, match="was not asked"):
        await (await client(no_token)).text(address, "/large", seconds=2)
