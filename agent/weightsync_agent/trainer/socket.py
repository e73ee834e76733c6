"""Serves wire/local.py: parse, find the rank, hand over. It decides nothing."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from weightsync import names
from weightsync.announcement import SourceRank as SourceRankRecord
from weightsync.errors import InputError, Refused
from weightsync.records import WireRecord
from weightsync.wire import local
from weightsync.wire.v1 import Accepted
from weightsync_agent.drivers.source_rank import SourceRank
from weightsync_agent.peers.server import parse_body, poll_seconds

B = TypeVar("B", bound=WireRecord)
MOST_RANKS = 64  # of one pod: as many as an announcement holds
KEPT = 64  # publishes of one rank that can still be spoken of
POLL = 10.0  # seconds of a long poll that does not say how long

Connect = Callable[[SourceRankRecord], Awaitable[SourceRank]]


async def _body(request: web.Request, kind: type[B]) -> B:
    return await parse_body(request, kind)


def _json(answer: WireRecord) -> web.Response:
    return web.json_response(text=answer.model_dump_json())


class TrainerSocket:
    """Handlers of the local API. connect: makes or renews the source of a rank."""

    def __init__(self, uid: str, connect: Connect) -> None:
        self._uid = uid
        self._connect = connect
        self._sources: dict[int, SourceRank] = {}
        self._of_publish: dict[str, SourceRank] = {}

    def routes(self) -> list[web.RouteDef]:
        """For peers.server.HttpServer."""
        one = "/v1/publishes/{id}"
        return [
            web.post("/v1/connect", self.connect),
            web.post("/v1/publishes", self.begin),
            web.post(f"{one}/names", self.names),
            web.post(f"{one}/filled", self.filled),
            web.post(f"{one}/copied", self.copied),
            web.post(f"{one}/failed", self.failed),
            web.get(f"{one}/outcome", self.outcome),
        ]

    async def connect(self, request: web.Request) -> web.Response:
        """A Publisher begins its life."""
        body = await _body(request, local.ConnectRequest)
        if body.rank >= body.world_size or body.stage >= body.stages:
            raise InputError(
                f"rank {body.rank} of {body.world_size}, stage {body.stage} of {body.stages}: both count from 0"
            )
        who = SourceRankRecord(
            rank=body.rank, world_size=body.world_size, stage=body.stage, stages=body.stages, nonce=body.nonce
        )
        if body.rank not in self._sources and len(self._sources) >= MOST_RANKS:
            raise Refused(
                f"rank {body.rank}: {MOST_RANKS} ranks are connected here already, more one pod cannot announce",
                reason="TooManyRanks",
            )
        self._sources[body.rank] = await self._connect(who)
        return _json(local.ConnectAnswer(uid=self._uid, version=names.VERSION))

    async def begin(self, request: web.Request) -> web.Response:
        """publish() was called."""
        body = await _body(request, local.BeginRequest)
        source = self._sources.get(body.rank)
        if source is None or source.who.nonce != body.nonce:
            raise Refused(
                f"rank {body.rank} is not connected (the agent restarted): connect again", reason="NotConnected"
            )
        answer = await source.begin(body)
        self._of_publish[answer.id] = source
        for old in list(self._of_publish)[: -KEPT * len(self._sources)]:
            del self._of_publish[old]
        return _json(answer)

    def _source(self, request: web.Request) -> tuple[SourceRank, str]:
        id_ = request.match_info["id"]
        source = self._of_publish.get(id_)
        if source is None:
            raise Refused(f"publish {id_} is not known (the agent restarted)", reason="UnknownPublish", status=404)
        return source, id_

    async def names(self, request: web.Request) -> web.Response:
        """The names that a first publish saw."""
        source, id_ = self._source(request)
        return _json(await source.names(id_, await _body(request, local.NamesReport)))

    async def filled(self, request: web.Request) -> web.Response:
        """Buckets are full."""
        source, id_ = self._source(request)
        source.filled(id_, await _body(request, local.Filled))
        return _json(Accepted())

    async def copied(self, request: web.Request) -> web.Response:
        """Everything is full."""
        source, id_ = self._source(request)
        await _body(request, local.Copied)
        await source.copied(id_)
        return _json(Accepted())

    async def failed(self, request: web.Request) -> web.Response:
        """The trainer's input was wrong."""
        source, id_ = self._source(request)
        await source.failed(id_, await _body(request, local.PublishFailure))
        return _json(Accepted())

    async def outcome(self, request: web.Request) -> web.Response:
        """Long poll: ?wait=seconds."""
        source, id_ = self._source(request)
        return _json(await source.outcome(id_, poll_seconds(request, POLL)))
