"""What an engine lends to engines that join, and for how long. Pure. Rules:

- it lends what it serves, as long as all ranks' arenas hold it, and what it reads itself, as it comes;
- who has a lease reads on when the engine goes over to the next version, as long as the one that was lent to it lies
  here; nobody else is lent that one any more;
- a lease ends where its reader says so, is silent, or asks for what is not here;
- who has no place costs nothing but the look: what could be read is thousands of digests.
"""

from collections.abc import Mapping
from typing import Protocol

from weightsync.errors import Refused, WeightSyncError
from weightsync.version import Version
from weightsync.wire.v1 import Decided, Held, HeldRank, Lease, LeaseRequest
from weightsync_agent.protocol.readers import MOST, SECONDS, Readers


class Rank(Protocol):
    """One rank's arenas."""

    def lendable(self, version: Version) -> object | None:
        """The one that is sealed as that version, where others can read it."""

    def growing(self, version: Version) -> object | None:
        """The one that our own worker reads that version into, where others can read it."""


class Engine(Protocol):
    """What the engine has now."""

    @property
    def ranks(self) -> Mapping[int, Rank]:
        """All of them; none where some are in other pods."""

    @property
    def programs(self) -> dict[int, str]:
        """Digests, by rank."""

    @property
    def decided(self) -> Decided | None:
        """The newest that it was told to serve."""

    @property
    def reads(self) -> Lease | None:
        """The lease under which it reads one itself."""

    def part(self, rank: int, request: LeaseRequest, growing: Lease | None) -> HeldRank:
        """One rank's, for who asks; growing: as ``reads``, where it is lent as it comes. Raises WeightSyncError."""


class Lending:
    """One engine's. most: readers at a time; seconds: of a lease."""

    def __init__(self, uid: str, engine: Engine, *, most: int = MOST, seconds: float = SECONDS) -> None:
        self.readers = Readers(most, seconds)
        self._uid = uid
        self._engine = engine
        self._lent: dict[str, Decided] = {}  # by reader

    def whole(self, version: Version) -> bool:
        """Every rank's arena holds it."""
        ranks = self._engine.ranks.values()
        return bool(ranks) and all(rank.lendable(version) is not None for rank in ranks)

    def _growing(self) -> Lease | None:
        """The lease under which every rank reads by now."""
        lease, ranks = self._engine.reads, self._engine.ranks
        if lease is None or {held.rank for held in lease.ranks} != ranks.keys():
            return None
        return lease if all(rank.growing(lease.decided.version) is not None for rank in ranks.values()) else None

    def held(self, now: float) -> Held:
        """What others may get here."""
        decided, growing = self._engine.decided, self._growing()
        if decided is not None and not self.whole(decided.version):
            decided = None
        if decided is None and growing is None:
            return Held(uid=self._uid)
        held = Held(uid=self._uid, decided=decided, readers=self.readers.load(now), most=self.readers.most)
        if growing is None:
            return held
        return held.model_copy(update={"grows": growing.decided, "behind": growing.behind + 1})

    def _lends(self, request: LeaseRequest, now: float) -> tuple[Decided, Lease | None] | None:
        """What was decided of it, and the lease under which it is read here, None where all of it is here."""
        decided, growing = self._engine.decided, self._growing()
        if decided is not None and decided.version == request.version and self.whole(request.version):
            return decided, None
        lent = self._lent.get(request.reader)
        reads = lent is not None and self.readers.reads(request.reader, now)
        if lent is not None and reads and lent.version == request.version and self.whole(request.version):
            return lent, None  # the engine serves another by now, whose bytes came into another arena
        if growing is not None and growing.decided.version == request.version and request.waits:
            return growing.decided, growing
        return None

    def lease(self, request: LeaseRequest, now: float) -> Lease:
        """Let it read, or go on reading. Raises Refused: NotHeld, LayoutMismatch, Busy, or what part() raises."""
        lends = self._lends(request, now)
        if lends is None:
            self.end(request.reader, now)
            raise Refused(
                f"{request.version.name} is not held here: ask another engine", reason="NotHeld", status=404
            )
        decided, growing = lends
        programs = self._engine.programs
        if programs != request.programs:
            raise Refused(
                f"the ranks here hold programs {programs}, the reader's {request.programs}: two layouts",
                reason="LayoutMismatch",
            )
        seconds = self.readers.admit(request.reader, now)
        try:
            ranks = tuple(self._engine.part(rank, request, growing) for rank in sorted(programs))
        except WeightSyncError:
            self.end(request.reader, now)
            raise
        self._lent[request.reader] = decided
        behind = growing.behind + 1 if growing is not None else 0
        return Lease(uid=self._uid, decided=decided, seconds=seconds, ranks=ranks, behind=behind)

    def end(self, reader: str, now: float) -> None:
        """It reads no more."""
        self.readers.end(reader)
        self._lent = {each: lent for each, lent in self._lent.items() if self.readers.reads(each, now)}
