"""Reads a version from another engine while that one gets it: the part of a relay that a coordinator orders here.

The parent is asked which buckets it has verified beyond those that are known; each is read, and digested here, at
once, and may be read from here as soon as it is found equal. The digests are compared with the decided root when the
version is committed, as those of written buckets are.
"""

import asyncio
import time
from collections.abc import Collection

import structlog

from weightsync.digests import BucketDigest
from weightsync.errors import InputError, PeerError, Refused, TransferError, WeightSyncError
from weightsync.wire.v1 import PassAnswer, PassRequest, Region, RelayEnd, RelayOrder, RelayRank
from weightsync_agent import failpoints
from weightsync_agent.drivers.background import Background
from weightsync_agent.drivers.rank_target import RankTarget, runs_of
from weightsync_agent.drivers.ranks import EngineRanks, StartRankWorker
from weightsync_agent.drivers.reading import Reading, Told, reader, together
from weightsync_agent.drivers.target_arena import TargetArena
from weightsync_agent.observability import metrics
from weightsync_agent.peers.client import PeerClient
from weightsync_agent.threads import to_its_end
from weightsync_agent.transfer.supervisor import TransferWorker

log = structlog.get_logger(__name__)

# Buckets of a rank under way: while one is digested the other is on the wire. More share the link, and each comes,
# and can be passed on, later.
AT_ONCE = 2
SHARE = 0.5  # of a stall timeout: a peer that has nothing to tell says so by then


class ParentLost(WeightSyncError):
    """What is read from does not answer, stalls, or is not what it was."""

    def __init__(self, error: WeightSyncError) -> None:
        super().__init__(str(error))
        self.reason = error.reason


class Relaying:
    """One engine's. uid: of its leader's pod; start: a reading worker of one of its ranks."""

    def __init__(self, uid: str, ranks: EngineRanks, client: PeerClient, start: StartRankWorker) -> None:
        self._uid = uid
        self._ranks = ranks
        self._client = client
        self._start = start
        self._order: RelayOrder | None = None
        self._ordered_at = 0.0
        self._end: RelayEnd | None = None  # of the order
        self._work: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._background = Background("relaying")

    def feeds(self, silent_after: float) -> bool:
        """A sync has the engine read, or it has read all and may be committed to within that time."""
        if self._order is None or time.monotonic() > self._ordered_at + silent_after:
            return False
        return self._end is None or self._end.verified

    async def order(self, order: RelayOrder) -> RelayEnd:
        """How it ended, or after a while that it has not. Raises Refused for one that is void.

        A later turn of a sync ends the earlier one; what that has verified is not read again.
        """
        async with self._changing:
            known = self._order
            if known is None or (known.sync, known.turn) != (order.sync, order.turn):
                self._check(order, known)
                await self._stop()
                self._order, self._ordered_at, self._end = order, time.monotonic(), None
                self._work = self._background.spawn(self._run(order))
            work = self._work
        if work is not None:
            await asyncio.wait({work}, timeout=SHARE * order.stall_seconds)
        if self._order is None or (self._order.sync, self._order.turn) != (order.sync, order.turn):
            raise Refused(f"turn {order.turn} of {order.sync} is over", reason="RelayOver")
        return self._end or RelayEnd(ended=False)

    def _check(self, order: RelayOrder, known: RelayOrder | None) -> None:
        if known is not None and known.sync == order.sync and known.turn > order.turn:
            raise Refused(f"turn {known.turn} of {order.sync} has begun", reason="RelayOver")
        if {rank.rank for rank in order.ranks} != self._ranks.targets.keys():
            raise Refused(f"the ranks here are {sorted(self._ranks.targets)}", reason="RanksDiffer")
        for rank in order.ranks:
            machine = self._ranks.targets[rank.rank].granted(rank.grant).machine
            machine.check_passing(rank.grant, 0)

    async def end(self, why: str) -> None:
        """Somebody else fills the arenas: no worker of ours reads any more when this returns."""
        async with self._changing:
            if self._work is not None and not self._work.done():
                log.info("reads from another engine no more", why=why)
            await self._stop()

    async def _stop(self) -> None:
        self._order = None  # whoever waits for its end is told that it is over
        if self._work is not None:
            self._work.cancel()
            await to_its_end(asyncio.wait({self._work}))

    async def _run(self, order: RelayOrder) -> None:
        every = tuple(rank.rank for rank in order.ranks)
        ranks = [_Rank(self._ranks.targets[r.rank], r, order, self._client, self._uid) for r in order.ranks]
        try:
            async with asyncio.timeout(order.deadline_seconds):
                await together([rank.run(self._start, every) for rank in ranks])
        except ParentLost as error:
            self._over(RelayEnd(ended=True, lost=True, reason=error.reason, message=str(error)))
        except WeightSyncError as error:
            self._over(RelayEnd(ended=True, reason=error.reason, message=str(error)))
        except TimeoutError:
            self._over(RelayEnd(ended=True, reason="RelayOverdue", message="the sync's time is over"))
        except Exception as error:
            self._over(RelayEnd(ended=True, reason=type(error).__name__, message=f"{error!r}"))
            raise
        else:
            nbytes = sum(rank.nbytes for rank in ranks)
            self._over(RelayEnd(ended=True, verified=True, nbytes=nbytes, transport=ranks[0].transport))

    def _over(self, end: RelayEnd) -> None:
        """Say how it ended: whoever ordered it asks again until then."""
        self._end = end
        metrics.RELAYS.labels(outcome="Verified" if end.verified else end.reason).inc()
        parent = self._order.engine if self._order is not None else ""
        seconds = time.monotonic() - self._ordered_at
        if end.verified:
            log.info("read from another engine", parent=parent, nbytes=end.nbytes, seconds=seconds)
        else:
            log.warning("reading from another engine failed", parent=parent, reason=end.reason, why=end.message)

    async def close(self) -> None:
        """End the reading workers."""
        await self._background.close()


class _Rank:
    """One rank's part."""

    def __init__(
        self, target: RankTarget, ordered: RelayRank, order: RelayOrder, client: PeerClient, uid: str
    ) -> None:
        self._target = target
        self._ordered = ordered
        self._order = order
        self._client = client
        self._uid = uid
        self._todo: asyncio.Queue[tuple[Region, BucketDigest] | None] = asyncio.Queue()
        self.nbytes = 0
        self.transport = ""

    async def run(self, start: StartRankWorker, every: Collection[int]) -> None:
        """Until all of it is verified. However it ends, its worker reads no more.

        Raises ParentLost, Refused where the grant is none any more, TransferError where it is our worker that fails.
        """
        arena = await self._target.begin_relay(self._ordered.grant)
        async with reader(start, f"relay-{self._ordered.rank}", self._target, arena, every) as worker:
            self.transport = worker.capabilities.transport
            reads = Reading(self._target, worker, arena, stall=self._order.stall_seconds, at_once=AT_ONCE)
            await together([self._follow(worker, arena), *(self._read(worker, reads) for _ in range(AT_ONCE))])
        self.nbytes = sum(bucket.nbytes for bucket in arena.verified())

    async def _follow(self, worker: TransferWorker, arena: TargetArena) -> None:
        """Learn of the parent's buckets until they are all of the payload."""
        known, told = arena.machine.verified, Told(self._order.engine, arena.machine.expected)
        while not told.whole:
            answer = await self._ask(worker, told.after)
            if told.region is None:
                await self._meet(worker, answer.region)
            try:
                found = told.take(answer)
            except TransferError as error:
                raise ParentLost(error) from error
            for bucket in found:
                if known.get(bucket.offset) != bucket:
                    self._todo.put_nowait((answer.region, bucket))
        for _ in range(AT_ONCE):
            self._todo.put_nowait(None)

    async def _ask(self, worker: TransferWorker, after: int) -> PassAnswer:
        order = self._order
        request = PassRequest(
            reader=self._uid, term=order.term, rank=self._ordered.rank, grant=self._ordered.parent, after=after,
            wait=SHARE * order.stall_seconds, ours=worker.capabilities,
        )  # fmt: skip
        try:
            answer = await self._client.persist(
                order.address, "/v1/passes", PassAnswer, request, seconds=order.stall_seconds
            )
            runs_of(self._target.program, answer.buckets)  # none reaches past the payload
        except (PeerError, InputError) as error:
            raise ParentLost(error) from error
        return answer

    async def _meet(self, worker: TransferWorker, region: Region) -> None:
        try:
            await worker.meet(region, deadline_seconds=self._order.stall_seconds)
        except TransferError as error:
            raise _blamed(worker, error) from error

    async def _read(self, worker: TransferWorker, reads: Reading) -> None:
        while (todo := await self._todo.get()) is not None:
            region, bucket = todo
            await failpoints.reach("target", "relaying")
            try:
                await reads.bucket(region, bucket, f"{self._order.engine}'s arena")
            except TransferError as error:
                raise _blamed(worker, error) from error
            metrics.BYTES_RELAYED.inc(bucket.nbytes)


def _blamed(worker: TransferWorker, error: TransferError) -> WeightSyncError:
    """Whose fault it is: ours where our own worker has ended, else the parent's, or the way's to it."""
    return error if worker.dead.done() else ParentLost(error)
