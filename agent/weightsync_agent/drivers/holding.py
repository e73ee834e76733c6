"""What this engine can lend to joining ones: its sealed arenas, and what it reads itself as it comes; and who reads
them. The holder's side of a pull.
"""

import time
from collections.abc import Callable

from weightsync.errors import Refused, WeightSyncError
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
from weightsync_agent.protocol.readers import Readers
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
        self._uid = uid
        self._ranks = ranks
        self._decided = decided
        self._grows = grows
        self._readers = Readers()
        self._lent: dict[str, Decided] = {}  # by reader
        # Asked for, not told: a reader that is gone says nothing when its lease ends.
        metrics.READERS.set_function(lambda: self._readers.count(time.monotonic()))

    def whole(self, version: Version) -> bool:
        """Every rank's arena holds it, and every rank is here."""
        targets = self._ranks.targets.values()
        return (
            bool(targets)
            and not self._ranks.remote
            and all(target.lendable(version) is not None for target in targets)
        )

    def _growing(self) -> Lease | None:
        """The lease under which every rank reads by now."""
        lease, targets = self._grows(), self._ranks.targets
        if lease is None or self._ranks.remote or {held.rank for held in lease.ranks} != targets.keys():
            return None
        reads = all(target.growing(lease.decided.version) is not None for target in targets.values())
        return lease if reads else None

    def held(self) -> Held:
        """For GET /v1/held."""
        decided, growing = self._decided(), self._growing()
        if decided is not None and not self.whole(decided.version):
            decided = None
        if decided is None and growing is None:
            return Held(uid=self._uid)
        readers = self._readers.load(time.monotonic())
        held = Held(uid=self._uid, decided=decided, readers=readers, most=self._readers.most)
        if growing is None:
            return held
        return held.model_copy(update={"grows": growing.decided, "behind": growing.behind + 1})

    def passes(self, reader: str) -> None:
        """Another engine reads from here in a sync: joiners turn to engines that nobody reads from."""
        self._readers.passes(reader, time.monotonic())

    @property
    def lends(self) -> bool:
        """A joiner reads from here."""
        return self._readers.count(time.monotonic()) > 0

    def _lends(self, request: LeaseRequest) -> tuple[Decided, Lease | None] | None:
        """What was decided of it, and the lease under which it is read here, None where all of it is here."""
        decided, growing = self._decided(), self._growing()
        if decided is not None and decided.version == request.version and self.whole(request.version):
            return decided, None
        lent = self._lent.get(request.reader)
        reads = lent is not None and self._readers.reads(request.reader, time.monotonic())
        if lent is not None and reads and lent.version == request.version and self.whole(request.version):
            return lent, None  # the engine serves another by now, whose bytes came into another arena
        if growing is not None and growing.decided.version == request.version and request.waits:
            return growing.decided, growing
        return None

    async def lease(self, request: LeaseRequest) -> Lease:
        """Let it read, or go on reading. Raises Refused: NotHeld, LayoutMismatch, CapabilityMismatch, Busy."""
        lends = self._lends(request)
        if lends is None:
            self._end(request.reader)
            raise Refused(
                f"{request.version.name} is not held here: ask another engine", reason="NotHeld", status=404
            )
        decided, growing = lends
        programs = {rank: target.program.digest for rank, target in self._ranks.targets.items()}
        if programs != request.programs:
            raise Refused(
                f"the ranks here hold programs {programs}, the reader's {request.programs}: two layouts",
                reason="LayoutMismatch",
            )
        # First: of many that ask most have no place, and what they could read is thousands of digests.
        seconds = self._readers.admit(request.reader, time.monotonic())
        try:
            ranks = tuple(self._lent_rank(rank, request, growing) for rank in sorted(self._ranks.targets))
        except WeightSyncError:
            self._end(request.reader)
            raise
        self._lent[request.reader] = decided
        behind = growing.behind + 1 if growing is not None else 0
        return Lease(uid=self._uid, decided=decided, seconds=seconds, ranks=ranks, behind=behind)

    def _lent_rank(self, rank: int, request: LeaseRequest, growing: Lease | None) -> HeldRank:
        target = self._ranks.targets[rank]
        agree(request.ours, target.worker.capabilities)
        return self._held_rank(target, request.version, growing)

    def _held_rank(self, target: RankTarget, version: Version, growing: Lease | None) -> HeldRank:
        """growing: see _lends()."""
        rank, program = target.program.rank, target.program.digest
        arena = target.lendable(version) if growing is None else target.growing(version)
        if arena is None or arena.region is None:
            raise Refused(f"rank {rank} is being filled anew", reason="NotHeld", status=404)
        if growing is None:
            return HeldRank(rank=rank, program=program, region=arena.region, buckets=arena.verified())
        buckets = next(held.buckets for held in growing.ranks if held.rank == rank)
        return HeldRank(
            rank=rank, program=program, region=arena.region, buckets=buckets, grant=arena.machine.grows(version)
        )

    async def more(self, request: MoreRequest) -> PassAnswer:
        """What has come of what it reads from here. Raises Refused (NotHeld, GrantClosed): no more comes."""
        target = self._ranks.targets.get(request.rank)
        if target is None or not self._readers.reads(request.reader, time.monotonic()):
            raise Refused(f"rank {request.rank} is not lent to {request.reader}", reason="NotHeld", status=404)
        return await target.grown(request)

    async def end(self, request: LeaseEnd) -> Accepted:
        """It reads no more."""
        self._end(request.reader)
        return Accepted()

    def _end(self, reader: str) -> None:
        self._readers.end(reader)
        now = time.monotonic()
        self._lent = {each: lent for each, lent in self._lent.items() if self._readers.reads(each, now)}
