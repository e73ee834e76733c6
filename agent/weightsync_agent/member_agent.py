"""The agent beside a pod of an engine that another pod leads: its API."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from weightsync.records import WireRecord
from weightsync.version import Version
from weightsync.wire import members as w
from weightsync.wire.v1 import Accepted, AgentStatus, GrantRequest, Receipts, VoidRequest
from weightsync_agent.base import Common
from weightsync_agent.drivers.direct_rank import DirectRank
from weightsync_agent.drivers.landing import Landing, nobody, staged
from weightsync_agent.drivers.member import MemberDriver
from weightsync_agent.drivers.programs import Programs
from weightsync_agent.drivers.ranks import EngineRanks
from weightsync_agent.engines.seed import Seed
from weightsync_agent.observability import metrics
from weightsync_agent.peers.auth import Caller
from weightsync_agent.peers.heads import Head, Heads
from weightsync_agent.peers.server import accepts, answers, own

C = TypeVar("C", bound=w.Call)
A = TypeVar("A", bound=WireRecord)


async def _no_seed(rank: int) -> Seed | None:
    """An engine of several pods is never written to itself."""
    return None


class MemberAgent:
    """The agent beside a pod of an engine of several, which is not its leader's."""

    def __init__(self, common: Common, head: Callable[[], Awaitable[Head]] | None = None) -> None:
        self._common = common
        settings = common.settings
        self._programs = Programs(common.volume.layouts, common.client, lambda: None)

        def ranks(served: Callable[[], Version | None]) -> EngineRanks:
            return EngineRanks(
                common.volume,
                self._programs,
                common.start_worker,
                landing=Landing(staged, _no_seed, memory_limit=common.limit, arenas=settings.target_arenas),
                make_direct=lambda program, begin: DirectRank(program, begin, _no_seed, nobody),
                arenas=settings.target_arenas,
                served=served,
                side=common.side,
            )

        self.driver = MemberDriver(
            settings.uid,
            settings.address,
            node=settings.node_rank,
            leader=settings.leader_address,
            client=common.client,
            volume=common.volume,
            own_pod=common.own_pod,
            make_ranks=ranks,
            side=common.side,
            probe_seconds=settings.probe_seconds,
            stall_seconds=settings.stall_seconds,
        )
        metrics.TERM.set_function(lambda: self.driver.fence.term)
        self._heads = Heads(head, lambda: (self.driver.fence.term, self.driver.fence.coordinator))

    def routes(self) -> list[web.RouteDef]:
        """What a member's agent serves: to coordinator and sources as any engine's, and to its leader."""
        verifier, driver = self._common.verifier, self.driver

        async def coordinates(caller: Caller, body: GrantRequest | VoidRequest) -> None:
            own(caller, body.coordinator)
            await self._heads.check(body.term, body.coordinator)

        async def grant(caller: Caller, body: GrantRequest):  # type: ignore[no-untyped-def]
            await coordinates(caller, body)
            return await driver.grant(body)

        async def void(caller: Caller, body: VoidRequest) -> Accepted:
            await coordinates(caller, body)
            return await driver.void(body)

        async def receipts(caller: Caller, body: Receipts):  # type: ignore[no-untyped-def]
            own(caller, body.writer.uid)
            return await driver.receipts(body)

        async def status(caller: Caller, request: web.Request) -> AgentStatus:
            return driver.status()

        async def hold(body: w.Hold) -> w.Held:
            if body.commit is not None:
                await self._heads.check(body.commit.term, body.commit.coordinator)
            return await driver.hold(body)

        async def arenas(body: w.AskArenas) -> w.Arenas:
            return driver.arenas(body)

        async def program(request: web.Request) -> web.Response:
            await verifier.verify(request.headers)
            text = self._programs.text(request.match_info["digest"])
            return web.Response(body=text, content_type="application/json")

        return [
            web.post("/v1/grants", accepts(GrantRequest, verifier, grant)),
            web.post("/v1/void", accepts(VoidRequest, verifier, void)),
            web.post("/v1/receipts", accepts(Receipts, verifier, receipts)),
            web.get("/v1/status", answers(verifier, status)),
            web.get("/v1/programs/{digest:[0-9a-f]{32}}", program),
            self._led("arenas", w.AskArenas, arenas),
            self._led("recoveries", w.Recover, driver.recover),
            self._led("certificates", w.Certify, driver.certify),
            self._led("holds", w.Hold, hold),
            self._led("releases", w.Release, driver.release),
            self._led("asks", w.HookAsk, driver.ask),
            self._led("results", w.HookIds, driver.results),
            self._led("withdrawals", w.HookIds, driver.withdraw),
        ]

    def _led(self, path: str, kind: type[C], then: Callable[[C], Awaitable[A]]) -> web.RouteDef:
        """A request of the leader's: its own token says that it is the pod which it names."""

        async def handle(caller: Caller, body: C) -> A:
            own(caller, body.leader)
            return await then(body)

        return web.post(f"/v1/member/{path}", accepts(kind, self._common.verifier, handle))

    async def run(self) -> None:
        """Until cancelled."""
        await self.driver.run()

    async def close(self) -> None:
        """End what was started."""
        await self.driver.close()
