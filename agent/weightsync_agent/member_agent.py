"""The agent beside a pod of an engine that another pod leads: its API."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from weightsync.records import WireRecord
from weightsync.version import Version
from weightsync.wire import members as w
from weightsync_agent import engine_pod_api
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
from weightsync_agent.peers.server import accepts, own

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
        driver = self.driver

        async def hold(body: w.Hold) -> w.Held:
            if body.commit is not None:
                await self._heads.check(body.commit.term, body.commit.coordinator)
            return await driver.hold(body)

        async def arenas(body: w.AskArenas) -> w.Arenas:
            return driver.arenas(body)

        return [
            *engine_pod_api.routes(driver, self._programs, self._common.verifier, self._heads),
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
