"""Asking another agent. Every failure is a PeerError with the peer's name; a refusal carries the peer's reason."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import aiohttp
import stamina
from pydantic import ValidationError

from weightsync.errors import InputError, PeerError, Refused
from weightsync.records import WireRecord, first_problem
from weightsync.wire.v1 import Problem

T = TypeVar("T", bound=WireRecord)
Headers = Callable[[], Awaitable[dict[str, str]]]

MAX_ANSWER = 256 * 2**20  # bytes: a copy program of a model with very many experts
SMALL_ANSWER = 64 * 2**20  # bytes: what is parsed at once


class Unreachable(PeerError):
    """No answer: refused connection, reset, or a deadline of ours. The request may have had its effect."""

    reason = "Unreachable"


class PeerClient:
    """One connection pool for all peers. headers: what proves who we are, asked anew for each request."""

    def __init__(self, headers: Headers, *, connect_seconds: float = 2.0) -> None:
        self._headers = headers
        self._connect = connect_seconds
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the pool. One connection per host and request: a stalled peer holds only its own."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            # Answers are taken as they are: a few kilobytes of a broken peer's zeros would become gigabytes.
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding",),
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def call(
        self, address: str, path: str, answer: type[T], body: WireRecord | None = None, *, seconds: float
    ) -> T:
        """POST ``body`` (GET without one); parse the answer.

        seconds: for the whole exchange. Raises Unreachable, Refused (the peer said no), PeerError (the
        answer is none of ours).
        """
        text = await self.text(address, path, body, seconds=seconds, limit=SMALL_ANSWER)
        try:
            return answer.model_validate_json(text)
        except ValidationError as error:
            raise PeerError(
                f"{address}{path} answered what is no {answer.__name__}: {first_problem(error)}"
            ) from error

    async def text(
        self, address: str, path: str, body: WireRecord | None = None, *, seconds: float, limit: int = MAX_ANSWER
    ) -> bytes:
        """The raw answer of a successful exchange, of at most ``limit`` bytes."""
        if self._session is None:
            raise PeerError("the client was not started")
        method = "GET" if body is None else "POST"
        data = None if body is None else body.model_dump_json().encode()
        try:
            headers = {**await self._headers(), "Content-Type": "application/json"}
        except InputError as error:  # the token's file is being replaced, or is gone
            raise PeerError(f"{address}{path} was not asked: {error}") from error
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(self._connect, seconds))
        try:
            # Redirects are answers like others: our token goes to whom it was meant for and nowhere else.
            async with self._session.request(
                method, f"http://{address}{path}", data=data, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                text = await _whole(response, f"{address}{path}", limit)
                status = response.status
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError) as error:
            said = str(error) or type(error).__name__
            raise Unreachable(f"{address}{path} did not answer within {seconds:.1f} s: {said}") from error
        if status >= 300:
            raise _refusal(address, path, status, text)
        return text

    async def persist(
        self, address: str, path: str, answer: type[T], body: WireRecord, *, seconds: float, tries: int = 4
    ) -> T:
        """call(), repeated while the peer is unreachable: only for requests that are safe to repeat."""
        async for attempt in stamina.retry_context(
            on=Unreachable, attempts=tries, timeout=seconds, wait_initial=0.1, wait_max=1.0
        ):
            with attempt:
                return await self.call(address, path, answer, body, seconds=seconds)
        raise Unreachable(f"{address}{path} did not answer within {seconds:.1f} s")


async def _whole(response: aiohttp.ClientResponse, origin: str, limit: int) -> bytes:
    """All of an answer: ``content.read(n)`` would return what happens to be buffered."""
    text = bytearray()
    async for chunk in response.content.iter_chunked(1 << 20):
        text += chunk
        if len(text) > limit:
            raise PeerError(f"{origin} answered more than {limit} bytes")
    return bytes(text)


def _refusal(address: str, path: str, status: int, text: bytes) -> PeerError:
    try:
        problem = Problem.model_validate_json(text)
    except ValidationError:
        said = text[:200].decode(errors="replace")
        return PeerError(f"{address}{path} answered {status}: {said}")
    return Refused(f"{address}: {problem.message}", reason=problem.reason, status=status)
