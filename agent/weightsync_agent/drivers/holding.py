"""What this engine can lend to joining ones: its sealed arenas, and who reads them. The holder's side of a pull."""

import time
from collections.abc import Callable

from weightsync.errors import Refused
from weightsync.version import Version
from weightsync.wire.v1 import Accepted, Decided, Held, HeldRank, Lease, LeaseEnd, LeaseRequest
from weightsync_agent.drivers.ranks import EngineRanks
from weightsync_agent.observability import metrics
from weightsync_agent.protocol.readers import Readers
from weightsync_agent.transfer.capabilities import agree


class Holding:
    """decided: the newest version that this engine was told to serve."""

    def __init__(self, uid: str, ranks: EngineRanks, decided: Callable[[], Decided | None]) -> None:
        self._uid = uid
        self._ranks = ranks
        self._decided = decided
        self._readers = Readers()
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

    def held(self) -> Held:
        """For GET /v1/held."""
        decided = self._decided()
        if decided is None or not self.whole(decided.version):
            return Held(uid=self._uid)
        readers = self._readers.load(time.monotonic())
        return Held(uid=self._uid, decided=decided, readers=readers, most=self._readers.most)

    def passes(self, reader: str) -> None:
        """Another engine reads from here in a sync: joiners turn to engines that nobody reads from."""
        self._readers.passes(reader, time.monotonic())

    @property
    def lends(self) -> bool:
        """A joiner reads from here."""
        return self._readers.count(time.monotonic()) > 0

    async def lease(self, request: LeaseRequest) -> Lease:
        """Let it read, or go on reading. Raises Refused: NotHeld, LayoutMismatch, CapabilityMismatch, Busy."""
        decided = self._decided()
        if decided is None or decided.version != request.version or not self.whole(request.version):
            self._readers.end(request.reader)
            raise Refused(
                f"{request.version.name} is not held here: ask another engine", reason="NotHeld", status=404
            )
        programs = {rank: target.program.digest for rank, target in self._ranks.targets.items()}
        if programs != request.programs:
            raise Refused(
                f"the ranks here hold programs {programs}, the reader's {request.programs}: two layouts",
                reason="LayoutMismatch",
            )
        ranks = []
        for rank, target in sorted(self._ranks.targets.items()):
            arena = target.lendable(request.version)
            if arena is None or arena.region is None:
                raise Refused(f"rank {rank} is being filled anew", reason="NotHeld", status=404)
            agree(request.ours, target.worker.capabilities)
            ranks.append(HeldRank(rank=rank, program=programs[rank], region=arena.region, buckets=arena.verified()))
        seconds = self._readers.admit(request.reader, time.monotonic())
        return Lease(uid=self._uid, decided=decided, seconds=seconds, ranks=tuple(ranks))

    async def end(self, request: LeaseEnd) -> Accepted:
        """It reads no more."""
        self._readers.end(request.reader)
        return Accepted()
