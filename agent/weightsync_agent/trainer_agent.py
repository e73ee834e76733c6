"""The agent beside a trainer: its API, and the plan that it follows."""

import asyncio
import time

import structlog
from aiohttp import web

from weightsync.announcement import Announcement
from weightsync.announcement import SourceRank as SourceRankRecord
from weightsync.errors import InputError
from weightsync.plan import Plan
from weightsync.report import Report
from weightsync.wire.v1 import (
    Accepted,
    Held,
    NamesRequest,
    OrderEnd,
    OrderFor,
    PublishOutcome,
    PublishRequest,
    PublishTrouble,
    QuietAnswer,
    QuietRequest,
    RouteEnd,
    ShardDigests,
)
from weightsync_agent.arenas.files import SourceArenas, sealed_in
from weightsync_agent.arenas.sizing import Room, room_for_replicas
from weightsync_agent.base import Common
from weightsync_agent.drivers.coordination import Coordination
from weightsync_agent.drivers.kept_term import KeptTerm, OwnTerms
from weightsync_agent.drivers.programs import Programs
from weightsync_agent.drivers.source_rank import SourceRank
from weightsync_agent.drivers.void_grants import VoidGrants
from weightsync_agent.journal.file import PairingFile, StateFile
from weightsync_agent.journal.records import Decision
from weightsync_agent.observability import feeds, metrics
from weightsync_agent.peers.auth import Caller
from weightsync_agent.peers.members import Members
from weightsync_agent.peers.server import HttpServer, accepts, answers, own, poll_seconds
from weightsync_agent.plan_feed.base import PlanFeed
from weightsync_agent.protocol.standing import ASK_CURRENT
from weightsync_agent.trainer.socket import TrainerSocket
from weightsync_agent.transfer.settings import OWN, Carrier
from weightsync_agent.transfer.supervisor import TransferWorker

log = structlog.get_logger(__name__)


class TrainerAgent:
    """The agent beside a trainer: sources, and, where the plan says so, the coordinator.

    terms: where the plan's own term counts for nothing, since it comes from a file.
    """

    def __init__(
        self, common: Common, feed: PlanFeed, decisions: StateFile[Decision], terms: OwnTerms | None
    ) -> None:
        self._common = common
        self._feed = feed
        self._terms = terms
        self._plan: Plan | None = None
        self._planned = asyncio.Event()
        self._programs = Programs(common.volume.layouts, common.client, self.plan)
        self._sources: dict[int, SourceRank] = {}
        self._room = Room(common.limit)
        self._members = Members()
        self.coordination = Coordination(
            common.settings.uid,
            common.capabilities,
            client=common.client,
            programs=self._programs,
            decisions=decisions,
            publish_report=self._reported,
            stall_seconds=common.settings.stall_seconds,
            # Without a cluster nobody announces that an engine began a new life: it is asked.
            # A plan file tells of restarts later than announcements do.
            ask_current=ASK_CURRENT if common.settings.in_cluster else 2.0,
            commit_seconds=common.settings.commit_seconds,
        )
        self._void = VoidGrants()
        self._socket = HttpServer(TrainerSocket(common.settings.uid, self.connect).routes())

    def plan(self) -> Plan | None:
        """The newest plan."""
        return self._plan

    def _reported(self, report: Report) -> None:
        self._common.own_pod.report(report)
        machine = self.coordination.machine
        if machine.active:
            feeds.coordinating(report, [known.version for known in machine.engines.values()])
        else:
            feeds.not_coordinating()

    async def connect(self, who: SourceRankRecord) -> SourceRank:
        """A Publisher of this pod began its life."""
        source = self._sources.get(who.rank) or self._make(who)
        await source.renew(who)
        log.info("publisher connected", rank=who.rank, world_size=who.world_size, stage=who.stage)
        self._announce()
        return source

    def _make(self, who: SourceRankRecord) -> SourceRank:
        common = self._common

        async def start(name: str, carrier: Carrier = OWN) -> TransferWorker:
            # Those that have connected by the time of a worker's start, which is its first use.
            return await common.start_worker(name, who.rank, self._sources.keys(), carrier)

        source = self._sources[who.rank] = SourceRank(
            who,
            common.settings.uid,
            plan=self.plan,
            planned=self._planned,
            client=common.client,
            programs=self._programs,
            arenas=SourceArenas(common.volume.arenas, who.rank, self._room),
            pairing=PairingFile.within(common.volume.directory, who.rank),
            count=common.settings.source_arenas,
            start=start,
            term=KeptTerm(common.volume.directory, str(who.rank)),
            void=self._void,
        )
        return source

    def _recover(self) -> None:
        """What a former life of this agent sealed can be ordered again, with or without a Publisher."""
        for rank, records in sealed_in(self._common.volume.arenas).items():
            newest = max(records, key=lambda record: record.turn)
            log.info("sealed arenas found", rank=rank, version=newest.version.name, arenas=len(records))
            self._make(newest.who).recover(records)

    def _announce(self) -> None:
        ranks = tuple(source.who for _, source in sorted(self._sources.items()))
        stages = max((who.stages for who in ranks), default=1)
        self._common.own_pod.announce(
            Announcement(
                address=self._common.settings.address,
                ready=bool(ranks),
                sources=ranks,
                devices=self._common.side.devices,
                no_device=self._common.side.why[:512],
                room_bytes=room_for_replicas(self._common.limit, self._common.settings.source_arenas, stages),
            )
        )

    def _source(self, uid: str, rank: int) -> SourceRank:
        source = self._sources.get(rank)
        if uid != self._common.settings.uid or source is None:
            raise InputError(f"rank {rank} of {uid} is not here: this is {self._common.settings.uid}")
        return source

    def routes(self) -> list[web.RouteDef]:
        """What a trainer's agent serves."""
        verifier, c = self._common.verifier, self.coordination

        async def publishes(caller: Caller, body: PublishRequest):  # type: ignore[no-untyped-def]
            own(caller, body.writer.uid)
            await self._members.joined(body.writer.uid)
            return await c.publishes(body)

        async def names(caller: Caller, body: NamesRequest):  # type: ignore[no-untyped-def]
            own(caller, body.writer.uid)
            await self._members.joined(body.writer.uid)
            return await c.names(body)

        async def shards(caller: Caller, body: ShardDigests) -> Accepted:
            own(caller, body.writer.uid)
            self._members.known(body.writer.uid)
            return await c.shards(body)

        async def routes(caller: Caller, body: RouteEnd) -> Accepted:
            own(caller, body.writer.uid)
            self._members.known(body.writer.uid)
            return await c.routes(body)

        async def trouble(caller: Caller, body: PublishTrouble) -> Accepted:
            own(caller, body.writer.uid)
            self._members.known(body.writer.uid)
            return await c.trouble(body)

        async def outcome(caller: Caller, request: web.Request) -> PublishOutcome:
            info = request.match_info
            return await c.outcome(info["lineage"], int(info["number"]), poll_seconds(request, 0.0))

        async def order(caller: Caller, body: OrderFor) -> Accepted:
            self._coordinator_only(caller)
            return await self._source(body.writer.uid, body.writer.rank).order(body.order)

        async def end(caller: Caller, body: OrderEnd) -> Accepted:
            self._coordinator_only(caller)
            return await self._source(body.writer.uid, body.writer.rank).end(body)

        async def quiet(caller: Caller, body: QuietRequest) -> QuietAnswer:
            plan = self._plan
            own(caller, *{t.uid for engine in (plan.engines if plan else ()) for t in engine.targets})
            # Every rank is asked: each has workers of its own, and each must remember.
            self._void.add(body.grant)
            said = [source.runner.quiet(body.grant, body.session) for source in self._sources.values()]
            return QuietAnswer(quiet=all(said))

        async def held(caller: Caller, request: web.Request) -> Held:
            # Where all have the same token, the one that asks says which one it is.
            return c.held(caller.uid or request.query.get("reader", ""))

        async def report(caller: Caller, request: web.Request) -> Report:
            return self._common.own_pod.last_report or Report(term=0)

        return [
            web.post("/v1/publishes", accepts(PublishRequest, verifier, publishes)),
            web.post("/v1/names", accepts(NamesRequest, verifier, names)),
            web.post("/v1/shards", accepts(ShardDigests, verifier, shards)),
            web.post("/v1/routes", accepts(RouteEnd, verifier, routes)),
            web.post("/v1/trouble", accepts(PublishTrouble, verifier, trouble)),
            web.post("/v1/orders", accepts(OrderFor, verifier, order)),
            web.post("/v1/orders/end", accepts(OrderEnd, verifier, end)),
            web.post("/v1/quiet", accepts(QuietRequest, verifier, quiet)),
            web.get("/v1/held", answers(verifier, held)),
            web.get("/v1/report", answers(verifier, report)),
            web.get("/v1/outcomes/{lineage:[0-9a-f]{16}}/{number:[0-9]{1,18}}", answers(verifier, outcome)),
        ]

    def _coordinator_only(self, caller: Caller) -> None:
        plan = self._plan
        own(caller, plan.coordinator if plan is not None else "")

    async def run(self) -> None:
        """Until cancelled: follow the plan."""
        self._recover()
        await self._socket.listen_unix(str(self._common.volume.socket))
        self._common.volume.socket.chmod(0o666)
        self._announce()
        while True:
            plan = await self._feed.next()
            if self._terms is not None:
                plan = self._terms.put_into(plan, int(time.time() * 1000))
            self._plan = plan
            log.info("plan", term=plan.term, generation=plan.generation, engines=len(plan.engines))
            metrics.TERM.set(self._plan.term)
            await self._members.put(plan)
            self.coordination.plan(plan)
            self._planned.set()

    async def close(self) -> None:
        """End what was started."""
        await self._socket.close()
        await self.coordination.close()
        for source in self._sources.values():
            await source.close()
