"""The agent's HTTP server: parse, know the caller, hand over, answer. It decides nothing."""

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
from weightsync.wire.v1 import Problem
from weightsync_agent.peers.auth import Caller, Verifier

log = structlog.get_logger(__name__)

B = TypeVar("B", bound=WireRecord)
MAX_BODY = 64 * 2**20  # bytes: names of a checkpoint with very many experts

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
    return web.json_response(text=Problem(reason=reason, message=message).model_dump_json(), status=status)


def accepts(
    kind: type[B], verifier: Verifier, then: Callable[[Caller, B], Awaitable[WireRecord]]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A handler for POST with a body of ``kind``: who calls is known before the body is read."""

    async def handle(request: web.Request) -> web.Response:
        caller = await verifier.verify(request.headers)
        try:
            body = kind.model_validate_json(await request.read())
        except ValidationError as error:
            raise InputError(f"{request.path}: {first_problem(error)}") from error
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


def own(caller: Caller, claimed: str) -> None:
    """Raises Refused unless the caller is who the body says. With a shared secret nobody can tell them apart."""
    if caller.uid and caller.uid != claimed:
        raise Refused(
            f"the token is of pod {caller.pod} ({caller.uid}), not of {claimed}", reason="NotYou", status=403
        )


class HttpServer:
    """Serves an application on one address, until closed."""

    def __init__(self, routes: list[web.RouteDef]) -> None:
        self.application = web.Application(middlewares=[problems], client_max_size=MAX_BODY)
        self.application.add_routes(routes)
        self._runner: web.AppRunner | None = None

    async def _ready(self) -> web.AppRunner:
        self._runner = web.AppRunner(self.application, access_log=None, handle_signals=False)
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
