"""Reads one holder's sealed arenas into ours, with a worker of its own for each rank; it decides of no version."""

import asyncio
from collections.abc import Collection

from weightsync.digests import BucketDigest
from weightsync.wire.v1 import HeldRank, Lease
from weightsync_agent import failpoints
from weightsync_agent.drivers.rank_target import RankTarget, runs_of
from weightsync_agent.drivers.ranks import EngineRanks, StartRankWorker
from weightsync_agent.drivers.reading import Reading, reader, together
from weightsync_agent.observability import metrics

AT_ONCE = 4  # buckets of a rank under way: while one is digested the others are on the wire


async def pull(ranks: EngineRanks, lease: Lease, start: StartRankWorker, *, stall: float, fence: bool) -> None:
    """Until every bucket of every rank is verified. However it ends, no worker of ours reads any more.

    Raises TransferError where a read failed, stalled or brought other bytes, Refused where an arena is not ours to
    fill. fence: see RankTarget.begin_pull.
    """
    every = tuple(held.rank for held in lease.ranks)
    await together([_Rank(ranks.targets[h.rank], h, lease, start, stall).run(every, fence) for h in lease.ranks])


class _Rank:
    """One rank's."""

    def __init__(
        self, target: RankTarget, held: HeldRank, lease: Lease, start: StartRankWorker, stall: float
    ) -> None:
        self._target = target
        self._held = held
        self._lease = lease
        self._start = start
        self._stall = stall

    async def run(self, every: Collection[int], fence: bool) -> None:
        """Until its buckets are verified."""
        held, target, decided = self._held, self._target, self._lease.decided
        runs_of(target.program, held.buckets)  # none reaches past the payload
        arena = await target.begin_pull(decided.version, decided.term, fence=fence)
        async with reader(self._start, f"reader-{held.rank}", target, arena, every) as worker:
            await worker.meet(held.region, deadline_seconds=self._stall)
            reads = Reading(target, worker, arena, stall=self._stall, at_once=AT_ONCE)
            known = arena.machine.verified
            limit = asyncio.Semaphore(AT_ONCE)
            left = [bucket for bucket in held.buckets if known.get(bucket.offset) != bucket]
            await together([self._bucket(reads, bucket, limit) for bucket in left])

    async def _bucket(self, reads: Reading, bucket: BucketDigest, limit: asyncio.Semaphore) -> None:
        async with limit:
            await failpoints.reach("target", "pulling")
            whose = f"{self._lease.uid}'s arena of {self._lease.decided.version.name}"
            await reads.bucket(self._held.region, bucket, whose)
            metrics.BYTES_PULLED.inc(bucket.nbytes)
