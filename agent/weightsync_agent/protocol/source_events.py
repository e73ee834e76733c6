"""All that can happen to a source rank, and all that it can ask for. Frozen values."""

from dataclasses import dataclass

from weightsync.buckets import Bucket
from weightsync.digests import BucketDigest
from weightsync.version import Version
from weightsync.wire.v1 import PlannedRoute, SyncOrder


@dataclass(frozen=True, order=True)
class ReplicaId:
    """One arena of a source rank: the program that fills it, and which of that program's arenas it is."""

    program: str
    index: int

    @property
    def key(self) -> tuple[str, int]:
        """For those who know nothing of machines."""
        return self.program, self.index


@dataclass(frozen=True, order=True)
class RouteId:
    """One route of one order. target: the pod's uid."""

    sync: str
    target: str
    rank: int


@dataclass(frozen=True)
class FoundReplica:
    """An arena of a former life of the agent whose header and record agree. turn: of its publish, then."""

    replica: ReplicaId
    version: Version
    turn: int
    buckets: tuple[BucketDigest, ...]


# --- events: at start ---


@dataclass(frozen=True)
class Found:
    """Once, before anything else: sealed arenas that outlived the agent."""

    replicas: tuple[FoundReplica, ...]


@dataclass(frozen=True)
class Compared:
    """The bytes of a found replica were digested and are, or are not, what its record says."""

    replica: ReplicaId
    equal: bool


# --- events: from the Publisher, of one call of publish() ---


@dataclass(frozen=True)
class Begin:
    """publish() was called. programs: those that the plan has this rank serve. Once per publish."""

    publish: str
    programs: tuple[str, ...]


@dataclass(frozen=True)
class NoRoom:
    """The arena of a Fill could not be made."""

    publish: str
    replica: ReplicaId
    message: str


@dataclass(frozen=True)
class Cut:
    """The buckets that this publish fills of a program; a second Cut of the same fill changes nothing."""

    publish: str
    program: str
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True)
class Digested:
    """These buckets are full, and digested."""

    publish: str
    program: str
    buckets: tuple[BucketDigest, ...]


@dataclass(frozen=True)
class Copied:
    """All buckets are full and digested; the trainer goes on training."""

    publish: str


@dataclass(frozen=True)
class Broken:
    """That publish will never be whole, here or at another rank: what it filled is no version.

    program: only what it filled of that one is none; the rest goes on.
    """

    publish: str
    reason: str
    message: str
    program: str = ""


# --- events: what the coordinator answers to a publish ---


@dataclass(frozen=True)
class Named:
    """All ranks published: the version that this publish is."""

    publish: str
    lineage: str
    number: int


@dataclass(frozen=True)
class Decided:
    """A version is decided, whoever said so first: an outcome, or the end of its order."""

    version: Version


@dataclass(frozen=True)
class Settled:
    """The publish has its outcome: no order for it follows. version: decided; None: it never will be."""

    publish: str
    version: Version | None


# --- events: orders ---


@dataclass(frozen=True)
class Ordered:
    """The coordinator's order. coordinator: its pod uid, "" where the wire does not say."""

    order: SyncOrder
    coordinator: str = ""


@dataclass(frozen=True)
class Ended:
    """The sync is over. version: what it decided; None: nothing."""

    sync: str
    term: int
    coordinator: str = ""
    version: Version | None = None


# --- events: routes and lanes ---


@dataclass(frozen=True)
class RouteStalled:
    """Nothing of a write became terminal for one stall timeout. Told at once, before the route's RouteOver."""

    route: RouteId
    lane: int


@dataclass(frozen=True)
class LaneHeld:
    """That worker takes no write, since its first contact with some peer does not end: all go on elsewhere.

    Told by whoever meets it; a second time it changes nothing.
    """

    lane: int


@dataclass(frozen=True)
class RouteMoved:
    """After MoveRoute: every write of the route through that lane is terminal, and it starts no other there."""

    route: RouteId
    lane: int


@dataclass(frozen=True)
class RouteOver:
    """The route has ended: it starts no write any more. open: lanes through which a write is not terminal."""

    route: RouteId
    verified: bool
    open: tuple[int, ...] = ()


@dataclass(frozen=True)
class LaneDead:
    """The process of that worker has ended: it reads no arena any more. Also where nobody killed it."""

    lane: int


@dataclass(frozen=True)
class Tick:
    """Time passed; asked for by Wake."""


# --- actions ---


@dataclass(frozen=True)
class Compare:
    """Digest these buckets of a found replica, in the background; then Compared."""

    replica: ReplicaId
    version: Version
    buckets: tuple[BucketDigest, ...]


@dataclass(frozen=True)
class Fill:
    """Let the publish fill this arena: its header says Filling before anything is answered.

    Whoever performs this makes the arena where it is not there (any more, or yet: an earlier Fill of it may have
    failed); NoRoom where that fails. Comes once for each program of the publish.
    """

    publish: str
    replica: ReplicaId


@dataclass(frozen=True)
class Abandon:
    """The publish gets no arenas (any more): whoever waits for its Fill is refused."""

    publish: str
    reason: str
    message: str


@dataclass(frozen=True)
class Seal:
    """Write the record beside the arena, synced, then the header Sealed. Before the next event is handled."""

    replica: ReplicaId
    version: Version
    turn: int
    buckets: tuple[BucketDigest, ...]


@dataclass(frozen=True)
class Empty:
    """Mark the arena Empty: what is in it is no version."""

    replica: ReplicaId


@dataclass(frozen=True)
class Remove:
    """Give the arena's memory back: nobody wants its program any more."""

    replica: ReplicaId


@dataclass(frozen=True)
class TakeOrder:
    """Answer the order of that sync: taken (or taken before)."""

    sync: str


@dataclass(frozen=True)
class RefuseOrder:
    """Answer the order of that sync: not a byte of it was written, and none will be."""

    sync: str
    reason: str
    message: str


@dataclass(frozen=True)
class RefuseEnd:
    """Refuse an Ended; one that is not refused is taken."""

    sync: str
    reason: str
    message: str


@dataclass(frozen=True)
class StartRoute:
    """Run a protocol.route.Route that reads ``replica`` and writes through ``lane``; then RouteOver."""

    route: RouteId
    planned: PlannedRoute
    order: SyncOrder
    replica: ReplicaId
    lane: int


@dataclass(frozen=True)
class FeedRoute:
    """Hand the route's machine an event: Filled, AllFilled or Cancel. A route that is over takes it in silence."""

    route: RouteId
    event: object


@dataclass(frozen=True)
class MoveRoute:
    """Submit no further piece through any other lane, and go on through ``lane``; then RouteMoved for the old.

    Buckets whose writes ended undone are written again (route.Unsent), never reported as done.
    """

    route: RouteId
    lane: int


@dataclass(frozen=True)
class ReportShard:
    """Tell the coordinator the digests of a whole shard. Once per order and program."""

    sync: str
    term: int
    program: str
    buckets: tuple[BucketDigest, ...]


@dataclass(frozen=True)
class KillLane:
    """SIGKILL the worker; then LaneDead (also where it was never started, or has ended)."""

    lane: int


@dataclass(frozen=True)
class Wake:
    """Feed a Tick at that time; an earlier one that is still to come stays."""

    at: float
