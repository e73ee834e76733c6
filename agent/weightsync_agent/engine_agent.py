"""The agent beside an engine: its API."""

from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from weightsync.wire.members import EngineOf, MemberHere
from weightsync.wire.v1 import (
    Accepted,
    CommitAnswer,
    CommitRequest,
    Held,
    Lease,
    LeaseEnd,
    LeaseRequest,
    MoreRequest,
    PassAnswer,
    PassRequest,
    QuietAnswer,
    QuietRequest,
    ReadBackAnswer,
    ReadBackRequest,
    RelayEnd,
    RelayOrder,
    Welcome,
)
from weightsync_agent import engine_pod_api
from weightsync_agent.base import Common
from weightsync_agent.drivers.crew import CrewCalls
from weightsync_agent.drivers.engine import EngineDriver
from weightsync_agent.drivers.joining import Joining
from weightsync_agent.drivers.landing import Wish, staged
from weightsync_agent.drivers.neighbours import Neighbours, ReadPlan
from weightsync_agent.drivers.programs import Programs
from weightsync_agent.drivers.ranks import EngineRanks
from weightsync_agent.drivers.relaying import Relaying
from weightsync_agent.engine_pod_api import coordinates
from weightsync_agent.engines.base import EngineAdapter
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import Journal
from weightsync_agent.observability import metrics
from weightsync_agent.peers.auth import Caller
from weightsync_agent.peers.heads import Head, Heads
from weightsync_agent.peers.server import accepts, answers, own
from weightsync_agent.protocol.engine_leader import EngineLeader, LeaderState


def _is(machine: EngineLeader, state: LeaderState) -> bool:
    return machine.state is state


class EngineAgent:
    """The agent beside an engine."""

    def __init__(
        self,
        common: Common,
        adapter: EngineAdapter,
        journal: StateFile[Journal],
        initial_gate: Callable[[], Awaitable[bool]] | None,
        head: Callable[[], Awaitable[Head]] | None = None,
        *,
        crew: CrewCalls | None = None,
        wish: Callable[[], Awaitable[Wish]] = staged,
        read_plan: ReadPlan | None = None,
    ) -> None:
        """read_plan: whom to join from; None: joins wait for the coordinator."""
        self._common = common
        self._programs = Programs(common.volume.layouts, common.client, lambda: None)
        self.driver = EngineDriver(
            common.settings.uid,
            common.settings.address,
            adapter=adapter,
            volume=common.volume,
            journal=journal,
            own_pod=common.own_pod,
            programs=self._programs,
            start=common.start_worker,
            memory_limit=common.limit,
            wish=wish,
            quiet=self._ask_quiet,
            probe_seconds=common.settings.probe_seconds,
            arenas=common.settings.target_arenas,
            initial_gate=initial_gate,
            side=common.side,
            crew=crew,
            joining=partial(self._join, read_plan) if read_plan is not None else None,
            relaying=lambda ranks: Relaying(common.settings.uid, ranks, common.client, common.start_worker),
        )
        self._show()
        self._heads = Heads(head, lambda: (self.driver.fence.term, self.driver.fence.coordinator))

    def _show(self) -> None:
        """Gauges that are read at each scrape."""
        machine, fence = self.driver.machine, self.driver.fence
        metrics.TERM.set_function(lambda: fence.term)
        number = metrics.VERSION_NUMBER.labels(role="engine")
        number.set_function(lambda: machine.version.number if machine.version is not None else 0)
        for state in LeaderState:
            metrics.ENGINE_STATE.labels(state=state.name.lower()).set_function(partial(_is, machine, state))

    def _join(self, read_plan: ReadPlan, engine: EngineDriver, ranks: EngineRanks) -> Joining:
        common, settings = self._common, self._common.settings
        return Joining(
            settings.uid,
            engine,
            ranks,
            neighbours=Neighbours(settings.uid, read_plan, common.client, believed=settings.in_cluster),
            client=common.client,
            start=common.start_worker,
            ours=common.capabilities,
            stall_seconds=settings.stall_seconds,
        )

    async def _ask_quiet(self, address: str, request: QuietRequest) -> QuietAnswer:
        return await self._common.client.call(
            address, "/v1/quiet", QuietAnswer, request, seconds=self._common.settings.stall_seconds
        )

    def routes(self) -> list[web.RouteDef]:
        """What an engine's agent serves."""
        verifier, driver = self._common.verifier, self.driver

        async def commit(caller: Caller, body: CommitRequest) -> CommitAnswer:
            await coordinates(self._heads, caller, body)
            return await driver.commit(body)

        async def welcome(caller: Caller, body: Welcome) -> Accepted:
            await coordinates(self._heads, caller, body)
            return await driver.welcome(body)

        async def readback(caller: Caller, body: ReadBackRequest) -> ReadBackAnswer:
            # The engine stands still meanwhile: not for any pod that likes to ask.
            own(caller, *{driver.uid, driver.fence.coordinator})
            version, equal = await driver.readback()
            return ReadBackAnswer(version=version, digest_ok=equal)

        async def member(caller: Caller, body: MemberHere) -> EngineOf:
            own(caller, body.uid)
            return driver.member(body)

        return [
            *engine_pod_api.routes(driver, self._programs, verifier, self._heads),
            web.post("/v1/commits", accepts(CommitRequest, verifier, commit)),
            web.post("/v1/welcome", accepts(Welcome, verifier, welcome)),
            web.post("/v1/readback", accepts(ReadBackRequest, verifier, readback)),
            web.post("/v1/members", accepts(MemberHere, verifier, member)),
            *self._lending(),
            *self._relaying(),
        ]

    def _relaying(self) -> list[web.RouteDef]:
        """Within a sync: whom to read from, and for those that read from here."""
        verifier, driver = self._common.verifier, self.driver

        async def relay(caller: Caller, body: RelayOrder) -> RelayEnd:
            await coordinates(self._heads, caller, body)
            return await driver.relay(body)

        async def passes(caller: Caller, body: PassRequest) -> PassAnswer:
            own(caller, body.reader)
            return await driver.passes(body)

        return [
            web.post("/v1/relays", accepts(RelayOrder, verifier, relay)),
            web.post("/v1/passes", accepts(PassRequest, verifier, passes)),
        ]

    def _lending(self) -> list[web.RouteDef]:
        """For engines that read a version from here."""
        verifier, holding = self._common.verifier, self.driver.exchange.holding

        async def held(caller: Caller, request: web.Request) -> Held:
            return holding.held()

        async def lease(caller: Caller, body: LeaseRequest) -> Lease:
            own(caller, body.reader)
            return await holding.lease(body)

        async def more(caller: Caller, body: MoreRequest) -> PassAnswer:
            own(caller, body.reader)
            return await holding.more(body)

        async def end(caller: Caller, body: LeaseEnd) -> Accepted:
            own(caller, body.reader)
            return await holding.end(body)

        return [
            web.get("/v1/held", answers(verifier, held)),
            web.post("/v1/leases", accepts(LeaseRequest, verifier, lease)),
            web.post("/v1/leases/more", accepts(MoreRequest, verifier, more)),
            web.post("/v1/leases/end", accepts(LeaseEnd, verifier, end)),
        ]

    async def run(self) -> None:
        """Until cancelled."""
        await self.driver.run()

    async def close(self) -> None:
        """End what was started."""
        await self.driver.close()
