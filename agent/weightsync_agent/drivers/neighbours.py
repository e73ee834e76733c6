"""Asks the coordinator and the plan's engines what they hold, for a joining engine."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from urllib.parse import quote

import structlog

from weightsync.errors import PeerError, Refused, WeightSyncError
from weightsync.plan import Engine, Plan
from weightsync.wire.v1 import Decided, Held
from weightsync_agent.peers.client import PeerClient
from weightsync_agent.protocol.holders import ASKED, Offer, offers_of, ring, share, suffices, whom

log = structlog.get_logger(__name__)

ReadPlan = Callable[[], Awaitable[Plan | None]]

AT_ONCE = 8
ANSWER_SECONDS = 2.0
PLAN_SECONDS = 30.0  # a plan that served is not read again before: a fresh fleet asks for hours
# Nor before this where all that it names are busy, since others came and lend what they read, or it seems stale.
# Each time that it still is what it was makes it twice as long, and no two engines read in step: hundreds may.
BUSY_SECONDS = 5.0


class Neighbours:
    """read: the plan that names this engine's sources, as it stands now. believed: its term is the head's."""

    def __init__(self, uid: str, read: ReadPlan, client: PeerClient, *, believed: bool) -> None:
        self._uid = uid
        self._read = read
        self._client = client
        self._believed = believed
        self._plan: Plan | None = None
        self._read_at = 0.0
        self._stale = False  # another coordinates by now, or another term has begun
        self._same = 0  # times in a row that it was read anew, and was what it was

    async def plan(self, *, busy: bool = False) -> Plan:
        """Whom to ask. busy: nobody in the last one had a place; where no newer one can be read, the last one serves.

        Raises Refused where no plan knows this engine's WeightSync yet, WeightSyncError where none can be read.
        """
        if self._plan is None or time.monotonic() > self._read_at + self._kept(soon=busy or self._stale):
            await self._read_anew()
        if self._plan is None:
            raise Refused("no plan is known that selects this engine", reason="NoPlan", status=503)
        return self._plan

    def _kept(self, *, soon: bool) -> float:
        """Seconds for which a plan that was read is not read again. soon: there may be a newer one."""
        pause = BUSY_SECONDS * (1 << min(self._same, 8)) * (1 + share(self._uid, str(self._read_at)))
        return min(PLAN_SECONDS, pause) if soon else PLAN_SECONDS

    async def _read_anew(self) -> None:
        before, self._read_at = self._plan, time.monotonic()
        try:
            self._plan = await self._read()
        except WeightSyncError as error:
            if before is None:
                raise
            log.info("no newer plan can be read; the last one serves", why=str(error))
        else:
            self._stale = False
        self._same = self._same + 1 if self._plan == before else 0

    def limit(self, plan: Plan) -> int | None:
        """The newest term that has begun; None where the plan does not say."""
        return plan.term if self._believed else None

    def holder_of(self, term: int) -> str:
        """Who coordinates in that term, "" where it is not known."""
        plan = self._plan
        return plan.coordinator if plan is not None and self._believed and plan.term == term else ""

    async def told(self, plan: Plan) -> Held | None:
        """What the coordinator knows of the last decision and of the sync that runs; None where it did not answer."""
        source = plan.source(plan.coordinator)
        if source is None:
            return None
        path = f"/v1/held?reader={quote(self._uid, safe='')}"
        try:
            held = await self._client.call(source.address, path, Held, seconds=ANSWER_SECONDS)
        except PeerError:
            self._stale = True  # it may be another's by now
            return None
        if held.decided is not None and held.decided.term > plan.term:
            self._stale = True  # another term has begun since it was read
        return held

    async def offers(
        self, plan: Plan, programs: Mapping[int, str], said: Decided | None, feeders: Collection[str] = ()
    ) -> tuple[Offer, ...]:
        """What engines of the same layouts hold: a few are asked at a time, until one has what was decided last, an
        idle link and a free place, since hundreds may join at once. said: by the coordinator, None where it did not
        answer; feeders: uids of those that others read from in a sync, as it knows.
        """
        alike = {engine.leader: engine for engine in plan.engines if self._alike(engine, programs)}
        able = [alike[uid] for uid in whom(self._uid, ring(alike), ASKED)]
        found: list[Offer] = []
        for first in range(0, len(able), AT_ONCE):
            asked = able[first : first + AT_ONCE]
            answers = await asyncio.gather(*(self._ask(engine, plan) for engine in asked))
            for engine, held in zip(asked, answers, strict=True):
                if held is not None:
                    found += offers_of(held, engine.address, feeds=engine.leader in feeders)
            if suffices(found, said):
                break
        return tuple(found)

    async def _ask(self, engine: Engine, plan: Plan) -> Held | None:
        try:
            held = await self._client.call(engine.address, "/v1/held", Held, seconds=ANSWER_SECONDS)
        except PeerError:
            return None
        # Another pod may have come to its address.
        if held.uid != engine.leader:
            return None
        if any(each is not None and each.term > plan.term for each in (held.decided, held.grows)):
            self._stale = True  # another coordinates since it was read
        return held

    def _alike(self, engine: Engine, programs: Mapping[int, str]) -> bool:
        here = {target.rank.rank: target.rank.program for target in engine.targets}
        alone = all(target.uid == engine.leader for target in engine.targets)
        return engine.leader != self._uid and engine.mode == "Staged" and alone and here == dict(programs)
