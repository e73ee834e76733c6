"""Reads buckets of one remote arena into one of ours, with a worker that is of no other use, and checks each.

The reading worker is no receiver: nobody is told its session, and once its process has ended no byte of a read can
come any more. That is what ends a read, whatever it waits for.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from weightsync.buckets import Bucket, Extent, first_gap
from weightsync.digests import BucketDigest
from weightsync.errors import TransferError
from weightsync.wire.v1 import PassAnswer, Region
from weightsync_agent.drivers.rank_target import RankTarget
from weightsync_agent.drivers.ranks import StartRankWorker
from weightsync_agent.drivers.target_arena import TargetArena
from weightsync_agent.observability import metrics
from weightsync_agent.threads import to_its_end
from weightsync_agent.transfer.pace import Pace
from weightsync_agent.transfer.supervisor import TransferWorker

PIECE = 8 << 20  # bytes of one read, at most: a piece that takes a stall timeout is a stall, also on a slow link


async def together(works: list[Coroutine[Any, Any, None]]) -> None:
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


class Told:
    """What one who gets a version itself has said of one of its arenas so far. expected: what will all be there;
    region: where, None until the first answer says so."""

    def __init__(self, whose: str, expected: Sequence[Extent], region: Region | None = None) -> None:
        self._whose = whose
        self._expected = expected
        self._told: dict[int, BucketDigest] = {}
        self.region = region
        self.after = 0  # buckets that need not be told again

    @property
    def whole(self) -> bool:
        """All of the payload."""
        runs = sorted((bucket.offset, bucket.offset + bucket.nbytes) for bucket in self._told.values())
        return first_gap(runs, self._expected) is None

    def take(self, answer: PassAnswer) -> tuple[BucketDigest, ...]:
        """What is there now. Raises TransferError where it is another worker's: what was met is gone."""
        if self.region not in (None, answer.region):
            raise TransferError(f"{self._whose} replaced its worker", reason="PeerGone")
        self.region, self.after = answer.region, self.after + len(answer.buckets)
        self._told |= {bucket.offset: bucket for bucket in answer.buckets}
        return answer.buckets


class Reading:
    """Into one arena. at_once: buckets under way; stall: seconds in which a piece must come."""

    def __init__(
        self, target: RankTarget, worker: TransferWorker, arena: TargetArena, *, stall: float, at_once: int
    ) -> None:
        self._target = target
        self._worker = worker
        self._arena = arena
        self._stall = stall
        self._pace = Pace(at_once * PIECE, PIECE)
        self._under_way = 0  # bytes that are being read

    async def bucket(self, region: Region, bucket: BucketDigest, whose: str) -> None:
        """One, to verified. whose: the arena that is read, for messages. Raises TransferError."""
        at, stop = bucket.offset, bucket.offset + bucket.nbytes
        while at < stop:
            at += await self._piece(region, at, stop - at)
        [computed] = await self._worker.digest(self._arena.path, [Bucket(offset=bucket.offset, nbytes=bucket.nbytes)])
        if not await self._target.pulled(self._arena, computed, bucket):
            metrics.BUCKETS_UNEQUAL.inc()
            raise TransferError(
                f"rank {self._target.program.rank}: {bucket.nbytes} bytes at {bucket.offset} of {whose} are not "
                "those that were said: it is filled anew, or they were spoiled on the way",
                reason="ArenaChanged",
            )

    async def _piece(self, region: Region, at: int, left: int) -> int:
        """Read some of the bytes left of a bucket: how many."""
        nbytes = min(self._pace.piece, left)
        self._under_way += nbytes
        mark, since = self._pace.mark(self._under_way), time.monotonic()
        try:
            await self._worker.fetch(self._arena.path, at, nbytes, region, seconds=self._stall)
        finally:
            self._under_way -= nbytes
        self._pace.ended(mark, time.monotonic() - since)
        return nbytes


@asynccontextmanager
async def reader(
    start: StartRankWorker, name: str, target: RankTarget, arena: TargetArena, every: Collection[int]
) -> AsyncIterator[TransferWorker]:
    """A worker that has the arena attached. However it is left, no byte comes any more afterwards."""
    worker: TransferWorker | None = None
    try:
        worker = await start(name, target.program.rank, every)
        await worker.attach(arena.path)
        yield worker
    finally:
        await to_its_end(_end(worker, target, arena))


async def _end(worker: TransferWorker | None, target: RankTarget, arena: TargetArena) -> None:
    if worker is not None:
        worker.kill()
        await asyncio.shield(worker.dead)
    await target.end_pull(arena)
