"""What a source asks and tells the coordinator: names, publishes and their outcomes, shards, ends of routes."""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from weightsync.announcement import SourceRank as SourceRankRecord
from weightsync.errors import Refused
from weightsync.plan import Plan
from weightsync.version import version_name
from weightsync.wire import local
from weightsync.wire.v1 import (
    Accepted,
    NamesAnswer,
    NamesRequest,
    PublishAnswer,
    PublishOutcome,
    PublishRequest,
    PublishTrouble,
    RouteEnd,
    ShardDigests,
    WriterId,
)
from weightsync_agent.drivers.kept import Kept
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import Pairing
from weightsync_agent.peers.client import PeerClient, Unreachable

log = structlog.get_logger(__name__)

POLL = 10.0  # seconds of one long poll
AGAIN = 1.0  # seconds until a coordinator that could not be reached is asked for the outcome again
GRACE = 5.0  # seconds after a sync's deadline until a lost coordinator becomes the outcome


class SourceCoordinator:
    """The coordinator as one rank sees it. plan: the newest plan, None before the first."""

    def __init__(
        self, writer: WriterId, plan: Callable[[], Plan | None], client: PeerClient, pairing: StateFile[Pairing]
    ) -> None:
        self.plan = plan
        self._writer = writer
        self._client = client
        self._pairing = Kept(pairing, f"the count of rank {writer.rank}")

    # --- what the plan says ---

    def wanted(self) -> list[str]:
        """Programs that the plan has this rank serve."""
        plan = self.plan()
        mine = (self._writer.uid, self._writer.rank)
        return sorted(
            {
                target.rank.program
                for engine in (plan.engines if plan is not None else ())
                for target in engine.targets
                for route in target.routes
                if (route.source, route.rank) == mine
            }
        )

    def bucket_limit(self, layout: int) -> int:
        """Upper bound of a bucket of a layout of so many bytes."""
        plan = self.plan()
        return plan.transfer.bucket_bytes if plan is not None else layout

    def address(self) -> str:
        """Raises Refused where no plan names a coordinator."""
        plan = self.plan()
        source = plan.source(plan.coordinator) if plan is not None else None
        if source is None:
            raise Refused("the plan has no coordinator", reason="NoCoordinator", status=503)
        return source.address

    def deadline(self) -> float:
        """Seconds of one sync."""
        plan = self.plan()
        return float(plan.strategy.deadline_seconds) if plan is not None else 60.0

    def _term(self) -> int:
        plan = self.plan()
        return plan.term if plan is not None else 0

    # --- what it is asked and told ---

    async def names(self, who: SourceRankRecord, program: str, names: frozenset[str]) -> frozenset[str]:
        """Which of these names the stage owns of a program: answered when every stage has told its own."""
        request = NamesRequest(
            term=self._term(), writer=self._writer, stage=who.stage, program=program, names=tuple(sorted(names))
        )
        answer = await self._client.persist(
            self.address(), "/v1/names", NamesAnswer, request, seconds=self.deadline()
        )
        return frozenset(answer.owned)

    async def publish(
        self, who: SourceRankRecord, request: local.BeginRequest, programs: Iterable[str]
    ) -> PublishAnswer:
        """Answers when every rank has called publish(), at the deadline at the latest. programs: those it fills."""
        kept = self._pairing.value
        known = kept if kept is not None and kept.nonce == request.nonce else None
        body = PublishRequest(
            writer=self._writer,
            world_size=who.world_size,
            stage=who.stage,
            stages=who.stages,
            nonce=request.nonce,  # the Publisher's that called, though another may have come by now
            sequence=request.sequence,
            offset=known.offset if known is not None else 0,
            label=request.label,
            programs=tuple(sorted(programs)),
        )
        seconds = self.deadline() + GRACE
        # Safe to repeat: the coordinator takes one publish that is told twice as one.
        answer = await self._client.persist(self.address(), "/v1/publishes", PublishAnswer, body, seconds=seconds)
        self._pairing.keep(Pairing(nonce=request.nonce, offset=max(0, answer.number - request.sequence)))
        return answer

    async def outcome(self, version: PublishAnswer, seen: Callable[[PublishOutcome], None]) -> PublishOutcome:
        """Ask until the publish has ended. seen: takes each answer. Raises Unreachable at the deadline."""
        loop, name = asyncio.get_running_loop(), version_name(version.lineage, version.number)
        address = self.address()
        # At most one earlier sync runs before this one's own deadline starts.
        until = loop.time() + 2 * (self.deadline() + GRACE)
        while loop.time() < until:
            path = f"/v1/outcomes/{version.lineage}/{version.number}?wait={POLL}"
            try:
                outcome = await self._client.call(address, path, PublishOutcome, seconds=POLL + GRACE)
            except Unreachable as error:  # one connection was reset; the sync goes on meanwhile
                log.info("outcome not told, asking again", version=name, why=str(error))
                await asyncio.sleep(AGAIN)
                continue
            seen(outcome)
            if outcome.ended:
                return outcome
        raise Unreachable(f"the coordinator at {address} did not tell the outcome of {name} by its deadline")

    async def trouble(self, version: PublishAnswer, reason: str, message: str) -> None:
        """That version will never be whole."""
        body = PublishTrouble(
            writer=self._writer,
            lineage=version.lineage,
            number=version.number,
            reason=reason,
            message=f"rank {self._writer.rank}: {message}",
        )
        await self._client.persist(self.address(), "/v1/trouble", Accepted, body, seconds=POLL)

    async def shard(self, digests: ShardDigests) -> None:
        """A shard is whole."""
        await self._client.persist(self.address(), "/v1/shards", Accepted, digests, seconds=POLL)

    async def route(self, end: RouteEnd) -> Accepted:
        """A route has ended."""
        return await self._client.persist(self.address(), "/v1/routes", Accepted, end, seconds=POLL)
