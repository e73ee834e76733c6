"""Reads one holder's arenas into ours, with a worker of its own for each rank; it decides of no version.

A holder may read the version itself: then each bucket is read once it has said that it has verified it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from weightsync.digests import BucketDigest
from weightsync.errors import TransferError
from weightsync.wire.v1 import HeldRank, Lease, MoreRequest, PassAnswer
from weightsync_agent import failpoints
from weightsync_agent.drivers.rank_target import RankTarget, runs_of
from weightsync_agent.drivers.ranks import EngineRanks, StartRankWorker
from weightsync_agent.drivers.reading import Reading, Told, reader, together
from weightsync_agent.drivers.target_arena import TargetArena
from weightsync_agent.observability import metrics
from weightsync_agent.transfer.supervisor import STALLED, TransferWorker

AT_ONCE = 4  # buckets of a rank under way: while one is digested the others are on the wire
SHARE = 0.5  # of a stall timeout: a holder that has nothing to tell says so by then


@dataclass(frozen=True)
class Pulling:
    """How it is done. uid: of our leader; more: ask the holder; stall: seconds in which a piece must come; deadline:
    seconds for all of it, where the holder reads itself: a slow one would slow all behind it for as long.

    fence: see RankTarget.begin_pull.
    """

    uid: str
    start: StartRankWorker
    more: Callable[[MoreRequest], Awaitable[PassAnswer]]
    stall: float
    deadline: float
    fence: bool


async def pull(ranks: EngineRanks, lease: Lease, how: Pulling) -> None:
    """Until every bucket of every rank is verified. However it ends, no worker of ours reads any more.

    Raises TransferError where a read failed, stalled or brought other bytes, Refused where an arena is not ours to
    fill, PeerError where the holder gets no more of what it lends.
    """
    every = tuple(held.rank for held in lease.ranks)
    await together([_Rank(ranks.targets[h.rank], h, lease, how).run(every) for h in lease.ranks])


class _Rank:
    """One rank's."""

    def __init__(self, target: RankTarget, held: HeldRank, lease: Lease, how: Pulling) -> None:
        self._target = target
        self._held = held
        self._lease = lease
        self._how = how
        self._todo: asyncio.Queue[BucketDigest | None] = asyncio.Queue()

    async def run(self, every: Collection[int]) -> None:
        """Until its buckets are verified."""
        held, target, decided, how = self._held, self._target, self._lease.decided, self._how
        runs_of(target.program, held.buckets)  # none reaches past the payload
        arena = await target.begin_pull(decided.version, decided.term, fence=how.fence)
        async with reader(how.start, f"reader-{held.rank}", target, arena, every) as worker:
            await worker.meet(held.region, deadline_seconds=how.stall)
            reads = Reading(target, worker, arena, stall=how.stall, at_once=AT_ONCE)
            learn = self._follow(worker, arena) if held.grant else self._all(arena)
            try:
                async with asyncio.timeout(how.deadline if held.grant else None):
                    await together([learn, *(self._read(reads) for _ in range(AT_ONCE))])
            except TimeoutError as error:
                raise TransferError(
                    f"rank {held.rank}: {self._lease.uid} reads the version itself, and passed it on for "
                    f"{how.deadline:g} s without an end: another engine may be faster",
                    reason=STALLED,
                ) from error

    async def _all(self, arena: TargetArena) -> None:
        self._put(arena, self._held.buckets)
        self._put_last()

    async def _follow(self, worker: TransferWorker, arena: TargetArena) -> None:
        held, how = self._held, self._how
        decided = {bucket.offset: bucket for bucket in held.buckets}
        told = Told(self._lease.uid, arena.machine.expected, held.region)
        while not told.whole:
            request = MoreRequest(
                reader=how.uid, rank=held.rank, grant=held.grant, after=told.after, wait=SHARE * how.stall,
                ours=worker.capabilities,
            )  # fmt: skip
            found = told.take(await how.more(request))
            if any(decided.get(bucket.offset) != bucket for bucket in found):
                raise TransferError(
                    f"rank {held.rank}: {self._lease.uid} has verified what is not of the decided version",
                    reason="ArenaChanged",
                )
            self._put(arena, found)
        self._put_last()

    def _put(self, arena: TargetArena, buckets: Collection[BucketDigest]) -> None:
        known = arena.machine.verified
        for bucket in buckets:
            if known.get(bucket.offset) != bucket:
                self._todo.put_nowait(bucket)

    def _put_last(self) -> None:
        for _ in range(AT_ONCE):
            self._todo.put_nowait(None)

    async def _read(self, reads: Reading) -> None:
        whose = f"{self._lease.uid}'s arena of {self._lease.decided.version.name}"
        while (bucket := await self._todo.get()) is not None:
            await failpoints.reach("target", "pulling")
            await reads.bucket(self._held.region, bucket, whose)
            metrics.BYTES_PULLED.inc(bucket.nbytes)
