"""One replica of a source rank: an arena, and what the bytes in it may be taken for. Rules:

- it is filled anew only while nobody reads it: every route that was started from it has ended with all its writes
  terminal, or the worker that had the others is dead. So no byte of a bucket changes between filled and terminal;
- a publish's events reach it only while that publish owns it: a late one changes nothing;
- it is sealed once its version is decided and every bucket is digested, whichever is known last;
- Spent and Sealed bytes can be ordered: they are what their publish filled, until the next Fill.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from weightsync.buckets import Bucket
from weightsync.digests import BucketDigest
from weightsync.version import Version, version_name
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.table import Machine, Row


class ReplicaState(Enum):
    """What is in the arena."""

    EMPTY = "nothing that is, or will be, a version"
    FILLING = "a publish fills it"
    FILLED = "filled; its publish has no outcome yet, so its order may still come"
    SPENT = "filled, and its publish has ended undecided, or another version is wanted: the next to be filled"
    FOUND = "sealed by a former life of the agent; its bytes are being compared"
    SEALED = "a decided version: repairs read it"


@dataclass(frozen=True)
class Take:
    """Event: the publish ``owner``, the ``turn``-th of this rank, fills it. name: its version's, where known."""

    owner: str
    turn: int
    name: str = ""


@dataclass(frozen=True)
class Recover:
    """Event: at start, what the arena and its record say. newest: compare it, for repairs may need it."""

    found: s.FoundReplica
    newest: bool


class Replica(Machine[ReplicaState]):
    """See the module's rules. readers: routes whose writes may still read the arena."""

    def __init__(self, id_: s.ReplicaId) -> None:
        super().__init__(ReplicaState.EMPTY)
        self.id = id_
        self.owner = ""
        self.turn = 0
        self.name = ""
        self.buckets: tuple[Bucket, ...] | None = None
        self.digests: dict[int, BucketDigest] = {}
        self.readers: set[s.RouteId] = set()
        self.version: Version | None = None  # as decided; sealed as it once the bytes are whole
        self.settled = False

    @property
    def complete(self) -> bool:
        """Every bucket is digested."""
        return self.buckets is not None and len(self.digests) == len(self.buckets)

    @property
    def free(self) -> bool:
        """Nobody fills it, reads it, or may still be ordered to."""
        return self.state not in (ReplicaState.FILLING, ReplicaState.FILLED) and not self.readers

    @property
    def kept(self) -> bool:
        """Repairs may need what is in it: another one is filled where one is free."""
        return self.state in (ReplicaState.SEALED, ReplicaState.FOUND)

    @property
    def ordered_bytes(self) -> tuple[BucketDigest, ...]:
        """What is digested so far, by offset."""
        return tuple(self.digests[offset] for offset in sorted(self.digests))

    def _take(self, event: Take, now: float) -> None:
        self.owner, self.turn, self.name = event.owner, event.turn, event.name
        self.buckets, self.digests, self.version, self.settled = None, {}, None, False

    def _recover(self, event: Recover, now: float) -> list[object]:
        found = event.found
        self.turn = found.turn
        if not event.newest:
            return []  # never compared, so nothing that can be ordered
        self.name, self.version = found.version.name, found.version
        self.buckets = tuple(Bucket(offset=b.offset, nbytes=b.nbytes) for b in found.buckets)
        self.digests = {bucket.offset: bucket for bucket in found.buckets}
        return [s.Compare(self.id, found.version, found.buckets)]

    def _cut(self, event: s.Cut, now: float) -> None:
        self.buckets = event.buckets

    def _digested(self, event: s.Digested, now: float) -> None:
        known = {bucket.offset for bucket in self.buckets or ()}
        self.digests.update({bucket.offset: bucket for bucket in event.buckets if bucket.offset in known})

    def _named(self, event: s.Named, now: float) -> None:
        self.name = version_name(event.lineage, event.number)

    def _note(self, event: s.Decided | s.Settled, now: float) -> None:
        self.version = event.version or self.version
        self.settled = self.settled or isinstance(event, s.Settled)

    def _seal(self, event: s.Decided | s.Settled | s.Copied, now: float) -> list[object]:
        if not isinstance(event, s.Copied):
            self._note(event, now)
        return [s.Seal(self.id, self.version, self.turn, self.ordered_bytes)] if self.version is not None else []

    def _empty(self, event: object, now: float) -> list[object]:
        self.owner, self.name, self.buckets, self.digests, self.version = "", "", None, {}, None
        return [s.Empty(self.id)]

    def mine(self, event: s.Decided | s.Settled) -> bool:
        """The event names the version of these bytes."""
        return event.version is not None and event.version.name == self.name


def choose(replicas: Sequence[Replica], count: int) -> Replica | int | None:
    """Which replica of one program the next publish fills; an index: a fresh one; None: none may be filled yet.

    What repairs read is taken last, and of that the oldest.
    """
    free = sorted((r for r in replicas if r.free), key=lambda r: (r.kept, r.turn, r.id.index))
    if free and not free[0].kept:
        return free[0]
    if len(replicas) < count:
        return min(set(range(count)) - {r.id.index for r in replicas})
    return free[0] if free else None


_S = ReplicaState
_TAKE = (Row(_S.FILLING, Replica._take, lambda m, e: not m.readers, "nobody reads it: fill"),)


def _ignore(state: ReplicaState, *events: type) -> dict[tuple[object, type], tuple[Row, ...]]:
    return {(state, event): (Row(state, name="late, or of other bytes"),) for event in events}


def _broken(*states: ReplicaState) -> dict[tuple[object, type], tuple[Row, ...]]:
    return {(state, s.Broken): (Row(_S.EMPTY, Replica._empty, name="no version: empty"),) for state in states}


Replica.table = {
    **{(state, Take): _TAKE for state in (_S.EMPTY, _S.SPENT, _S.FOUND, _S.SEALED)},
    **_broken(_S.FILLING, _S.FILLED, _S.SPENT),
    **_ignore(_S.EMPTY, s.Decided, s.Compared),
    (_S.EMPTY, Recover): (
        Row(_S.FOUND, Replica._recover, lambda m, e: e.newest, "compare what repairs may need"),
        Row(_S.SPENT, Replica._recover, name="older: the next to be filled"),
    ),
    (_S.FILLING, s.Cut): (Row(_S.FILLING, Replica._cut, name="buckets are known"),),
    (_S.FILLING, s.Digested): (Row(_S.FILLING, Replica._digested, name="note digests"),),
    (_S.FILLING, s.Named): (Row(_S.FILLING, Replica._named, name="the version's name"),),
    (_S.FILLING, s.Copied): (
        Row(_S.SEALED, Replica._seal, lambda m, e: m.complete and m.version is not None, "decided before: seal"),
        Row(_S.SPENT, None, lambda m, e: m.complete and m.settled, "its publish has ended undecided"),
        Row(_S.FILLED, None, lambda m, e: m.complete, "its outcome is awaited"),
    ),
    (_S.FILLING, s.Decided): (
        Row(_S.SEALED, Replica._seal, lambda m, e: m.mine(e) and m.complete, "decided and whole: seal"),
        Row(_S.FILLING, Replica._note, lambda m, e: m.mine(e), "decided; the rest is still filled"),
        Row(_S.FILLING, name="another version"),
    ),
    (_S.FILLING, s.Settled): (
        Row(_S.SEALED, Replica._seal, lambda m, e: m.mine(e) and m.complete, "decided and whole: seal"),
        Row(_S.FILLING, Replica._note, name="its outcome; the rest is still filled"),
    ),
    **_ignore(_S.FILLING, s.Compared),
    (_S.FILLED, s.Named): (Row(_S.FILLED, Replica._named, name="the version's name"),),
    (_S.FILLED, s.Decided): (
        Row(_S.SEALED, Replica._seal, lambda m, e: m.mine(e), "decided: seal"),
        Row(_S.FILLED, name="another version"),
    ),
    (_S.FILLED, s.Settled): (
        Row(_S.SEALED, Replica._seal, lambda m, e: m.mine(e), "decided: seal"),
        Row(_S.SPENT, name="ended undecided: the next to be filled"),
    ),
    **_ignore(_S.FILLED, s.Copied, s.Compared),
    (_S.SPENT, s.Decided): (
        Row(_S.SEALED, Replica._seal, lambda m, e: m.mine(e), "decided after all: seal"),
        Row(_S.SPENT, name="another version"),
    ),
    **_ignore(_S.SPENT, s.Copied, s.Compared),
    (_S.FOUND, s.Compared): (
        Row(_S.SEALED, None, lambda m, e: e.equal, "the bytes are the version"),
        Row(_S.EMPTY, Replica._empty, name="they are not: empty"),
    ),
    **_ignore(_S.FOUND, s.Decided),
    **_ignore(_S.SEALED, s.Copied, s.Settled, s.Decided, s.Compared, s.Broken),
}
