"""What this engine can lend to joining ones: its ranks' arenas for protocol.lending. The holder's side of a pull."""

import time
from collections.abc import Callable, Mapping

from weightsync.errors import Refused
from weightsync.version import Version
from weightsync.wire.v1 import (
    Accepted,
    Decided,
    Held,
    HeldRank,
    Lease,
    LeaseEnd,
    LeaseRequest,
    MoreRequest,
    PassAnswer,
)
from weightsync_agent.drivers.rank_target import RankTarget
from weightsync_agent.drivers.ranks import EngineRanks
from weightsync_agent.observability import metrics
from weightsync_agent.protocol.lending import Lending
from weightsync_agent.transfer.capabilities import agree


class Holding:
    """decided: the newest version that this engine was told to serve; grows: the lease under which it reads one."""

    def __init__(
        self,
        uid: str,
        ranks: EngineRanks,
        decided: Callable[[], Decided | None],
        grows: Callable[[], Lease | None] = lambda: None,
    ) -> None:
        self._ranks = ranks
        self._decided = decided
        self._grows = grows
        self._lending = Lending(uid, self)
        # Asked for, not told: a reader that is gone says nothing when its lease ends.
        metrics.READERS.set_function(lambda: self._lending.readers.count(time.monotonic()))

    # --- what protocol.lending asks ---

    @property
    def ranks(self) -> Mapping[int, RankTarget]:
        """See lending.Engine."""
        return self._ranks.targets if not self._ranks.remote else {}

    @property
    def programs(self) -> dict[int, str]:
        """See lending.Engine."""
        return {rank: target.program.digest for rank, target in self._ranks.targets.items()}

    @property
    def decided(self) -> Decided | None:
        """See lending.Engine."""
        return self._decided()

    @property
    def reads(self) -> Lease | None:
        """See lending.Engine."""
        return self._grows()

    def part(self, rank: int, request: LeaseRequest, growing: Lease | None) -> HeldRank:
        """Raises Refused (NotHeld, CapabilityMismatch), TransferError where the rank has no worker."""
        target, version = self._ranks.targets[rank], request.version
        agree(request.ours, target.worker.capabilities)
        arena = target.lendable(version) if growing is None else target.growing(version)
        if arena is None or arena.region is None:
            raise Refused(f"rank {rank} is being filled anew", reason="NotHeld", status=404)
        program = target.program.digest
        if growing is None:
            return HeldRank(rank=rank, program=program, region=arena.region, buckets=arena.verified())
        buckets = next(held.buckets for held in growing.ranks if held.rank == rank)
        return HeldRank(
            rank=rank, program=program, region=arena.region, buckets=buckets, grant=arena.machine.grows(version)
        )

    # --- requests ---

    def held(self) -> Held:
        """For GET /v1/held."""
        return self._lending.held(time.monotonic())

    def passes(self, reader: str) -> None:
        """Another engine reads from here in a sync: joiners turn to engines that nobody reads from."""
        self._lending.readers.passes(reader, time.monotonic())

    @property
    def lends(self) -> bool:
        """A joiner reads from here."""
        return self._lending.readers.count(time.monotonic()) > 0

    def whole(self, version: Version) -> bool:
        """Every rank's arena holds it, and every rank is here."""
        return self._lending.whole(version)

    async def lease(self, request: LeaseRequest) -> Lease:
        """Let it read, or go on reading. Raises Refused: NotHeld, LayoutMismatch, CapabilityMismatch, Busy."""
        return self._lending.lease(request, time.monotonic())

    async def more(self, request: MoreRequest) -> PassAnswer:
        """What has come of what it reads from here. Raises Refused (NotHeld, GrantClosed): no more comes."""
        target = self._ranks.targets.get(request.rank)
        if target is None or not self._lending.readers.reads(request.reader, time.monotonic()):
            raise Refused(f"rank {request.rank} is not lent to {request.reader}", reason="NotHeld", status=404)
        return await target.grown(request)

    async def end(self, request: LeaseEnd) -> Accepted:
        """It reads no more."""
        self._lending.end(request.reader, time.monotonic())
        return Accepted()
