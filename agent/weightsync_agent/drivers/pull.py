"""Reads one holder's arenas into ours, with a worker of its own for each rank. It decides nothing about versions.

The reading worker is no receiver: nobody is told its session, and once its process has ended no byte of a read can
come any more. That is what ends a pull, whatever it waits for.
"""

import asyncio
import time
from collections.abc import Collection, Coroutine
from typing import Any

import structlog

from weightsync.buckets import Bucket
from weightsync.digests import BucketDigest
from weightsync.errors import TransferError
from weightsync.wire.v1 import HeldRank, Lease
from weightsync_agent import failpoints
from weightsync_agent.drivers.rank_target import RankTarget, runs_of
from weightsync_agent.drivers.ranks import EngineRanks, StartRankWorker
from weightsync_agent.drivers.target_arena import TargetArena
from weightsync_agent.observability import metrics
from weightsync_agent.threads import to_its_end
from weightsync_agent.transfer.pace import Pace
from weightsync_agent.transfer.supervisor import TransferWorker

log = structlog.get_logger(__name__)

PIECE = 8 << 20  # bytes of one read, at most: a piece that takes a stall timeout is a stall, also on a slow link
AT_ONCE = 4  # buckets of a rank under way: while one is digested the others are on the wire


async def pull(ranks: EngineRanks, lease: Lease, start: StartRankWorker, *, stall: float, fence: bool) -> None:
    """Until every bucket of every rank is verified. However it ends, no worker of ours reads any more.

    Raises TransferError where a read failed, stalled or brought other bytes, Refused where an arena is not ours to
    fill. fence: see RankTarget.begin_pull.
    """
    every = tuple(held.rank for held in lease.ranks)
    await _together([_Reading(ranks.targets[h.rank], h, lease, start, stall).run(every, fence) for h in lease.ranks])


async def _together(works: list[Coroutine[Any, Any, None]]) -> None:
    """All of them; the first failure ends the others, and is raised once they have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION) if tasks else (set(), None)
    finally:
        for task in tasks:
            task.cancel()
        await to_its_end(asyncio.gather(*tasks, return_exceptions=True))
    for task in done:
        task.result()


class _Reading:
    """One rank's."""

    def __init__(
        self, target: RankTarget, held: HeldRank, lease: Lease, start: StartRankWorker, stall: float
    ) -> None:
        self._target = target
        self._held = held
        self._decided = lease.decided
        self._holder = lease.uid
        self._start = start
        self._stall = stall
        self._pace = Pace(AT_ONCE * PIECE, PIECE)
        self._under_way = 0  # bytes that are being read

    async def run(self, every: Collection[int], fence: bool) -> None:
        """Until its buckets are verified."""
        runs_of(self._target.program, self._held.buckets)  # none reaches past the payload
        arena = await self._target.begin_pull(self._decided.version, self._decided.term, fence=fence)
        worker: TransferWorker | None = None
        try:
            worker = await self._start(f"reader-{self._held.rank}", self._held.rank, every)
            await worker.attach(arena.path)
            await worker.meet(self._held.region, deadline_seconds=self._stall)
            known = arena.machine.verified
            limit = asyncio.Semaphore(AT_ONCE)
            left = [bucket for bucket in self._held.buckets if known.get(bucket.offset) != bucket]
            await _together([self._bucket(worker, arena, bucket, limit) for bucket in left])
        finally:
            await to_its_end(self._end(worker, arena))

    async def _end(self, worker: TransferWorker | None, arena: TargetArena) -> None:
        if worker is not None:
            worker.kill()
            await asyncio.shield(worker.dead)
        await self._target.end_pull(arena)

    async def _bucket(
        self, worker: TransferWorker, arena: TargetArena, bucket: BucketDigest, limit: asyncio.Semaphore
    ) -> None:
        async with limit:
            await failpoints.reach("target", "pulling")
            at, stop = bucket.offset, bucket.offset + bucket.nbytes
            while at < stop:
                at += await self._piece(worker, arena, at, stop - at)
            [computed] = await worker.digest(arena.path, [Bucket(offset=bucket.offset, nbytes=bucket.nbytes)])
            if not await self._target.pulled(arena, computed, bucket):
                metrics.BUCKETS_UNEQUAL.inc()
                raise TransferError(
                    f"rank {self._held.rank}: {bucket.nbytes} bytes at {bucket.offset} of {self._holder}'s arena are "
                    f"not those of {self._decided.version.name}: it is filled anew, or they were spoiled on the way",
                    reason="ArenaChanged",
                )
            metrics.BYTES_PULLED.inc(bucket.nbytes)

    async def _piece(self, worker: TransferWorker, arena: TargetArena, at: int, left: int) -> int:
        """Read some of the bytes left of a bucket: how many."""
        nbytes = min(self._pace.piece, left)
        self._under_way += nbytes
        mark, since = self._pace.mark(self._under_way), time.monotonic()
        try:
            await worker.fetch(arena.path, at, nbytes, self._held.region, seconds=self._stall)
        finally:
            self._under_way -= nbytes
        self._pace.ended(mark, time.monotonic() - since)
        return nbytes
