"""What every agent beside a pod of an engine serves, whether that pod leads it or not: who may ask, in one place."""

from typing import Protocol

from aiohttp import web

from weightsync.wire.v1 import Accepted, AgentStatus, Grant, GrantRequest, Receipts, ReceiptsAnswer, VoidRequest
from weightsync_agent.drivers.programs import Programs
from weightsync_agent.peers.auth import Caller, Verifier
from weightsync_agent.peers.heads import Heads
from weightsync_agent.peers.server import accepts, answers, own


class FromCoordinator(Protocol):
    """A request that only a coordinator may make."""

    @property
    def term(self) -> int: ...
    @property
    def coordinator(self) -> str: ...


class WrittenTo(Protocol):
    """The driver of a pod whose ranks are written to; each raises Refused."""

    async def grant(self, request: GrantRequest) -> Grant:
        """A coordinator's handshake with one rank."""

    async def void(self, request: VoidRequest) -> Accepted:
        """Writers of a grant never got an order."""

    async def receipts(self, request: Receipts) -> ReceiptsAnswer:
        """A writer's buckets are terminal."""

    def status(self) -> AgentStatus:
        """What the pod's ranks hold."""


async def coordinates(heads: Heads, caller: Caller, body: FromCoordinator) -> None:
    """Raises Refused unless the caller is the coordinator that it names, and the head names it, too."""
    own(caller, body.coordinator)
    await heads.check(body.term, body.coordinator)


def routes(driver: WrittenTo, programs: Programs, verifier: Verifier, heads: Heads) -> list[web.RouteDef]:
    """For coordinator and sources."""

    async def grant(caller: Caller, body: GrantRequest) -> Grant:
        await coordinates(heads, caller, body)
        return await driver.grant(body)

    async def void(caller: Caller, body: VoidRequest) -> Accepted:
        await coordinates(heads, caller, body)
        return await driver.void(body)

    async def receipts(caller: Caller, body: Receipts) -> ReceiptsAnswer:
        own(caller, body.writer.uid)
        return await driver.receipts(body)

    async def status(caller: Caller, request: web.Request) -> AgentStatus:
        return driver.status()

    async def program(request: web.Request) -> web.Response:
        await verifier.verify(request.headers)
        return web.Response(body=programs.text(request.match_info["digest"]), content_type="application/json")

    return [
        web.post("/v1/grants", accepts(GrantRequest, verifier, grant)),
        web.post("/v1/void", accepts(VoidRequest, verifier, void)),
        web.post("/v1/receipts", accepts(Receipts, verifier, receipts)),
        web.get("/v1/status", answers(verifier, status)),
        web.get("/v1/programs/{digest:[0-9a-f]{32}}", program),
    ]
