"""What both roles of an agent have: volume, peers, identity, and what every agent serves."""

import os
from collections.abc import Collection

import structlog
from aiohttp import web

from weightsync.announcement import Announcement
from weightsync.errors import Refused
from weightsync_agent.memory import memory_limit
from weightsync_agent.observability import metrics
from weightsync_agent.own_pod.base import OwnPod
from weightsync_agent.peers.auth import Caller, Credentials, Verifier
from weightsync_agent.peers.client import PeerClient
from weightsync_agent.peers.server import answers
from weightsync_agent.settings import Settings
from weightsync_agent.transfer import capabilities
from weightsync_agent.transfer.settings import OWN, Carrier, child_environment
from weightsync_agent.transfer.supervisor import TransferWorker
from weightsync_agent.transport import chosen, of_rank, over, side, transfer_settings
from weightsync_agent.volume import Volume

log = structlog.get_logger(__name__)


class Common:
    """What both roles have: volume, peers, identity, server."""

    def __init__(self, settings: Settings, own_pod: OwnPod, credentials: Credentials, verifier: Verifier) -> None:
        self.settings = settings
        self.own_pod = own_pod
        self.verifier = verifier
        self.client = PeerClient(credentials.headers)
        self.volume = Volume(settings.directory, settings.programs)
        self.limit = memory_limit(settings.memory_limit)
        decision = chosen(settings)
        self.side = side(settings, decision)
        self.transfer = transfer_settings(settings, decision)
        if settings.transport == "auto":
            # A route asks for RDMA, with options of the WeightSync's that may be needed to start at all.
            self.transfer = over(self.transfer, self.side, Carrier("tcp"))
        self._devices = decision.devices
        # A packet's size counts for routes over RDMA, also where this agent's own workers speak TCP.
        environment = child_environment(self.transfer, settings.host, os.environ) | self.transfer.verbs.environment()
        self.capabilities = capabilities.of(capabilities.installed(), environment)
        self.ready = False

    async def start_worker(
        self, name: str, rank: int, ranks: Collection[int], carrier: Carrier = OWN
    ) -> TransferWorker:
        """A transfer worker of one of this pod's ranks; its death is logged, and the next use of it fails.

        Raises TransferError where it does not start; reason NoDevice where this pod does not have that carrier.
        """
        settings = of_rank(over(self.transfer, self.side, carrier), self._devices, rank, ranks)
        worker = await TransferWorker.start(self.settings.host, settings, name=name)
        log.info("transfer worker", name=name, session=worker.session, transport=worker.capabilities.transport)
        return worker

    def routes(self) -> list[web.RouteDef]:
        """What every agent serves."""
        return [
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics),
            web.get("/v1/announcement", answers(self.verifier, self._announcement)),
        ]

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n" if self.ready else "starting\n", status=200 if self.ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        body, kind = metrics.exposition()
        return web.Response(body=body, headers={"Content-Type": kind})

    async def _announcement(self, caller: Caller, request: web.Request) -> Announcement:
        if self.own_pod.announcement is None:
            raise Refused(
                "this agent has just started, and says what it is once it has looked: what it said before stands",
                reason="NotAnnounced",
                status=503,
            )
        return self.own_pod.announcement
