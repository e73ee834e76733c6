"""The agent's HTTP server: parse, know the caller, hand over, answer. It decides nothing."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from aiohttp import web
from pydantic import ValidationError

from weightsync.errors import (
    CoverageError,
    EngineError,
    InputError,
    PeerError,
    ProtocolError,
    Refused,
    TransferError,
    WeightSyncError,
)
from weightsync.records import WireRecord, first_problem
from weightsync.wire import local
from weightsync.wire.v1 import NamesRequest, OrderFor, Problem, Receipts, ShardDigests
from weightsync_agent.observability import feeds, logs
from weightsync_agent.peers.auth import Caller, Verifier

log = structlog.get_logger(__name__)

B = TypeVar("B", bound=WireRecord)
MAX_BODY = 32 * 2**20  # bytes: names of a checkpoint with very many experts, digests of very many buckets
SMALL_BODY = 2 * 2**20  # bytes: everything else
BODY_SECONDS = 30.0  # a body that drips in, or never ends, holds its connection no longer
IDLE_SECONDS = 75.0  # a kept connection: longer than our client keeps it, so that it is the client who closes
LONGEST_POLL = 30.0  # seconds
LONGEST_MESSAGE = 4096  # characters of a refusal: it may quote what the caller sent

# What a body of so many bytes can be made of: parsing takes some 150 bytes and a microsecond for each value, and the
# agent does nothing else meanwhile.
MAX_VALUES, SMALL_VALUES = 2_000_000, 50_000
LARGE: tuple[type[WireRecord], ...] = (
    *(NamesRequest, OrderFor, Receipts, ShardDigests),
    *(local.NamesReport, local.Filled),
)

# Whose fault it is decides the status: the caller's, ours, or somebody's behind us.
_STATUS: tuple[tuple[type[WeightSyncError], int], ...] = (
    (CoverageError, 422),
    (InputError, 400),
    (ProtocolError, 409),
    (EngineError, 502),
    (TransferError, 502),
    (PeerError, 502),
)


class Nothing(WireRecord):
    """An empty body."""


def status_of(error: WeightSyncError) -> int:
    """The HTTP status that tells the caller whose fault it is."""
    if isinstance(error, Refused):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


@web.middleware
async def problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every error of ours becomes a Problem with its reason; anything else is a bug and is logged with its trace."""
    try:
        return await handler(request)
    except WeightSyncError as error:
        log.info("refused", path=request.path, reason=error.reason, message=str(error))
        return _problem(error.reason, str(error), status_of(error))
    except web.HTTPException as error:
        return _problem("HTTP", f"{request.method} {request.path}: {error.reason}", error.status)


def _problem(reason: str, message: str, status: int) -> web.Response:
    short = message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}..."
    return web.json_response(text=Problem(reason=reason, message=short).model_dump_json(), status=status)


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body. Raises Refused: 413 over ``limit`` bytes, 408 where it is not there in BODY_SECONDS."""
    said = request.content_length
    text = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            # Judged by what was said before a byte is read, then by what comes: a chunked body says nothing.
            while said is None or said <= limit:
                chunk = await request.content.readany()
                if not chunk:
                    return bytes(text)
                text += chunk
                if len(text) > limit:
                    break
    except TimeoutError:
        raise Refused(
            f"{request.path}: the body did not come within {BODY_SECONDS:.0f} s", reason="BodyLate", status=408
        ) from None
    except (web.RequestPayloadError, ConnectionError) as error:
        raise InputError(f"{request.path}: the body broke off: {error}") from error
    raise Refused(f"{request.path}: a body of at most {limit} bytes is taken", reason="BodyTooLarge", status=413)


async def parse_body(request: web.Request, kind: type[B]) -> B:
    """The body as a ``kind``. Raises InputError with the first wrong field; see read_body()."""
    limit, values = (MAX_BODY, MAX_VALUES) if kind in LARGE else (SMALL_BODY, SMALL_VALUES)
    text = await read_body(request, limit)
    if text.count(b",") + text.count(b"[") + text.count(b"{") > values:
        raise Refused(
            f"{request.path}: a body of at most {values} values is taken", reason="BodyTooLarge", status=413
        )
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise InputError(f"{request.path}: {first_problem(error)}") from error


def poll_seconds(request: web.Request, default: float) -> float:
    """How long a caller wants to wait: ?wait=seconds, at most LONGEST_POLL. Raises InputError for no such number."""
    text = request.query.get("wait")
    try:
        seconds = default if text is None else float(text)
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise InputError(f"wait={(text or '')[:32]} is no number of seconds")
    return min(LONGEST_POLL, max(0.0, seconds))


def accepts(
    kind: type[B], verifier: Verifier, then: Callable[[Caller, B], Awaitable[WireRecord]]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A handler for POST with a body of ``kind``: who calls is known before the body is read."""

    async def handle(request: web.Request) -> web.Response:
        caller = await verifier.verify(request.headers)
        body = await parse_body(request, kind)
        with logs.about(body):
            answer = await then(caller, body)
        return web.json_response(text=answer.model_dump_json())

    return handle


def answers(
    verifier: Verifier, then: Callable[[Caller, web.Request], Awaitable[WireRecord]]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A handler for GET."""

    async def handle(request: web.Request) -> web.Response:
        caller = await verifier.verify(request.headers)
        answer = await then(caller, request)
        return web.json_response(text=answer.model_dump_json())

    return handle


def own(caller: Caller, *claimed: str) -> None:
    """Raises Refused unless the caller is one of ``claimed``, whom the body names or who alone may ask.

    With a shared secret nobody can tell them apart.
    """
    if caller.uid and caller.uid not in claimed:
        named = " or ".join(each[:128] or "nobody" for each in sorted(claimed))
        raise Refused(f"the token is of pod {caller.pod} ({caller.uid}), not of {named}", reason="NotYou", status=403)


class HttpServer:
    """Serves an application on one address, until closed."""

    def __init__(self, routes: list[web.RouteDef]) -> None:
        self.application = web.Application(middlewares=[feeds.measured, problems], client_max_size=MAX_BODY)
        self.application.add_routes(routes)
        self._runner: web.AppRunner | None = None

    async def _ready(self) -> web.AppRunner:
        # Bodies are taken as they are: we do not compress, and a few kilobytes of zeros would become gigabytes.
        self._runner = web.AppRunner(
            self.application,
            access_log=None,
            handle_signals=False,
            auto_decompress=False,
            keepalive_timeout=IDLE_SECONDS,
        )
        await self._runner.setup()
        return self._runner

    async def listen(self, host: str, port: int) -> None:
        """TCP. host "": all addresses."""
        await web.TCPSite(await self._ready(), host or None, port, reuse_address=True).start()

    async def listen_unix(self, path: str) -> None:
        """A Unix socket; a stale one is replaced."""
        await web.UnixSite(await self._ready(), path).start()

    async def close(self) -> None:
        """Stop accepting, then end open requests."""
        if self._runner is not None:
            await self._runner.cleanup()
