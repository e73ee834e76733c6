"""One route: a source rank's shard to one target rank, in one sync. Rules:

- a bucket is written only after it was filled and digested, and is digested once, whatever the number of routes;
- a bucket that is told again (requests to the agent may come twice) is not written again for that;
- it is receipted only when its write is terminal; the target then reads and compares it;
- an unequal bucket is written again, at most RESENDS times;
- a bucket whose worker was replaced before its write was done is written again, as often as that happens;
- the last receipt is sent exactly once, when no write is in flight and none will follow: it closes the
  writer's part of the grant. A route that cannot say so (a stalled write) sends none: the target's fence must
  then kill the receiving worker before the range is granted again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from weightsync.digests import BucketDigest
from weightsync.wire.v1 import PlannedRoute
from weightsync_agent.protocol.table import Machine, Row

RESENDS = 3  # of one bucket: a target that never agrees is broken, not unlucky


class RouteState(Enum):
    """Where a route stands."""

    OPEN = "buckets are written and checked as they fill"
    CLOSING = "all verified; the last receipt is on its way"
    BREAKING = "given up; waits for its writes to become terminal"
    VERIFIED = "the target checked every bucket, and no write of ours will land any more"
    FAILED = "given up; quiet says whether bytes may still land"


@dataclass(frozen=True)
class Filled:
    """Buckets are full and digested."""

    buckets: tuple[BucketDigest, ...]


@dataclass(frozen=True)
class AllFilled:
    """The shard is complete: no Filled follows."""


@dataclass(frozen=True)
class Written:
    """These buckets' writes are terminal and done."""

    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Unsent:
    """These buckets' writes are terminal and not done: their worker takes no more, another one will."""

    offsets: tuple[int, ...]


@dataclass(frozen=True)
class WriteBroke:
    """A write failed. quiet: all submitted pieces are terminal."""

    quiet: bool
    reason: str
    message: str


@dataclass(frozen=True)
class Checked:
    """The target's answer to a receipt."""

    verified: tuple[int, ...]
    unequal: tuple[int, ...]


@dataclass(frozen=True)
class ReceiptBroke:
    """The target could not be asked, or refused."""

    reason: str
    message: str


@dataclass(frozen=True)
class Cancel:
    """The coordinator ended the sync for this route, or its deadline passed."""

    reason: str
    message: str


@dataclass(frozen=True)
class Write:
    """Action: write these buckets to the target."""

    buckets: tuple[BucketDigest, ...]


@dataclass(frozen=True)
class Receipt:
    """Action: tell the target that these are terminal; last closes our part of the grant."""

    buckets: tuple[BucketDigest, ...]
    last: bool
    failed: str = ""


@dataclass(frozen=True)
class StopWriting:
    """Action: submit no further piece; report WriteBroke when the submitted ones are terminal."""


@dataclass(frozen=True)
class End:
    """Action: report the route's end to the coordinator."""

    verified: bool
    quiet: bool
    reason: str
    message: str


class Route(Machine[RouteState]):
    """See the module's rules."""

    def __init__(self, planned: PlannedRoute) -> None:
        super().__init__(RouteState.OPEN)
        self.planned = planned
        self.known: dict[int, BucketDigest] = {}
        self.writing: set[int] = set()
        self.checking: set[int] = set()
        self.verified: set[int] = set()
        self.sends: dict[int, int] = {}
        self.differs: dict[int, int] = {}  # how often the target found another digest
        self.complete = False
        self.reason = ""
        self.message = ""

    @property
    def sent_bytes(self) -> int:
        """Bytes whose writes were started, resends included."""
        return sum(self.known[offset].nbytes * count for offset, count in self.sends.items())

    @property
    def resent_bytes(self) -> int:
        """Bytes written more than once."""
        return sum(self.known[offset].nbytes * (count - 1) for offset, count in self.sends.items())

    def _all_verified(self) -> bool:
        """Nothing in flight either: a write that is not terminal forbids the last receipt, whatever was verified."""
        settled = not self.writing and not self.checking
        return self.complete and settled and len(self.verified) == len(self.known)

    def _start(self, buckets: Iterable[BucketDigest]) -> list[object]:
        batch = tuple(buckets)
        for bucket in batch:
            self.writing.add(bucket.offset)
            self.sends[bucket.offset] = self.sends.get(bucket.offset, 0) + 1
        return [Write(batch)] if batch else []

    def _filled(self, event: Filled, now: float) -> list[object]:
        new = {bucket.offset: bucket for bucket in event.buckets if bucket.offset not in self.known}
        self.known.update(new)
        return self._start(new.values())

    def _filled_late(self, event: Filled, now: float) -> list[object]:
        message = "buckets were filled after the shard was said to be complete"
        return [End(False, True, "FilledLate", message)]

    def _complete(self, event: AllFilled, now: float) -> list[object]:
        self.complete = True
        return self._close() if self._all_verified() else []

    def _close(self) -> list[object]:
        self.state = RouteState.CLOSING
        return [Receipt((), last=True)]

    def _written(self, event: Written, now: float) -> list[object]:
        self.writing -= set(event.offsets)
        self.checking |= set(event.offsets)
        return [Receipt(tuple(self.known[offset] for offset in event.offsets), last=False)]

    def _unsent(self, event: Unsent, now: float) -> list[object]:
        self.writing -= set(event.offsets)
        return self._start(self.known[offset] for offset in event.offsets)

    def _checked(self, event: Checked, now: float) -> list[object]:
        self.checking -= set(event.verified) | set(event.unequal)
        self.verified |= set(event.verified)
        for offset in event.unequal:
            self.differs[offset] = self.differs.get(offset, 0) + 1
        worn = [offset for offset in event.unequal if self.differs[offset] > RESENDS]
        if worn:
            message = f"bucket at {worn[0]} differs at the target after {self.sends[worn[0]]} writes"
            return self._break("DigestMismatch", message)
        actions = self._start(self.known[offset] for offset in event.unequal)
        return actions or (self._close() if self._all_verified() else [])

    def _break(self, reason: str, message: str) -> list[object]:
        self.reason, self.message = reason, message
        if self.writing:
            self.state = RouteState.BREAKING
            return [StopWriting()]
        self.state = RouteState.FAILED
        return [Receipt((), last=True, failed=message), End(False, True, reason, message)]

    def _write_broke(self, event: WriteBroke, now: float) -> list[object]:
        if self.state is RouteState.OPEN:
            self.reason, self.message = event.reason, event.message
        self.writing.clear()
        self.state = RouteState.FAILED
        receipt: list[object] = [Receipt((), last=True, failed=self.message)] if event.quiet else []
        return [*receipt, End(False, event.quiet, self.reason, self.message)]

    def _still_writing(self, event: Written | Unsent, now: float) -> list[object]:
        self.writing -= set(event.offsets)
        return []

    def _last_written(self, event: Written | Unsent, now: float) -> list[object]:
        self.writing.clear()
        return [Receipt((), last=True, failed=self.message), End(False, True, self.reason, self.message)]

    def _quiet(self, event: Checked, now: float) -> list[object]:
        return [End(True, True, "", "")]

    def _close_broke(self, event: ReceiptBroke, now: float) -> list[object]:
        return [End(False, True, event.reason, event.message)]


_S = RouteState
Route.table = {
    (_S.OPEN, Filled): (Row(None, Route._filled, name="write what is full", may=(_S.OPEN,)),),
    (_S.OPEN, AllFilled): (Row(None, Route._complete, name="the shard is complete", may=(_S.CLOSING,)),),
    (_S.OPEN, Written): (Row(_S.OPEN, Route._written, name="ask the target to check"),),
    (_S.OPEN, Unsent): (Row(_S.OPEN, Route._unsent, name="write through another worker"),),
    (_S.OPEN, Checked): (
        Row(None, Route._checked, name="resend what differs", may=(_S.CLOSING, _S.BREAKING, _S.FAILED)),
    ),
    (_S.OPEN, WriteBroke): (Row(None, Route._write_broke, name="the write failed", may=(_S.FAILED,)),),
    (_S.OPEN, ReceiptBroke): (
        Row(None, lambda m, e, now: m._break(e.reason, e.message), name="no answer", may=(_S.BREAKING, _S.FAILED)),
    ),
    (_S.OPEN, Cancel): (
        Row(None, lambda m, e, now: m._break(e.reason, e.message), name="given up", may=(_S.BREAKING, _S.FAILED)),
    ),
    (_S.CLOSING, Checked): (Row(_S.VERIFIED, Route._quiet, name="the target has our last receipt"),),
    (_S.CLOSING, ReceiptBroke): (Row(_S.FAILED, Route._close_broke, name="the last receipt is unanswered"),),
    (_S.CLOSING, Cancel): (Row(_S.CLOSING, name="too late to give up"),),
    (_S.CLOSING, Written): (Row(_S.CLOSING, name="terminal already"),),
    (_S.CLOSING, Unsent): (Row(_S.CLOSING, name="every write was terminal before"),),
    # A worker can end, or fall silent, between its last bucket and its word that the call is over.
    (_S.CLOSING, WriteBroke): (Row(_S.CLOSING, name="every write was terminal before"),),
    (_S.CLOSING, AllFilled): (Row(_S.CLOSING, name="complete already"),),
    (_S.CLOSING, Filled): (
        Row(_S.CLOSING, None, lambda m, e: all(b.offset in m.known for b in e.buckets), "told already"),
        Row(_S.FAILED, Route._filled_late, name="the shard was not complete"),
    ),
    (_S.BREAKING, WriteBroke): (Row(None, Route._write_broke, name="all terminal, or stalled", may=(_S.FAILED,)),),
    **{
        (_S.BREAKING, event): (
            Row(_S.FAILED, Route._last_written, lambda m, e: m.writing <= set(e.offsets), "all terminal"),
            Row(_S.BREAKING, Route._still_writing, name="some terminal"),
        )
        for event in (Written, Unsent)
    },
    (_S.BREAKING, Checked): (Row(_S.BREAKING, name="an answer to an earlier receipt"),),
    (_S.BREAKING, ReceiptBroke): (Row(_S.BREAKING, name="no answer to an earlier receipt"),),
    (_S.BREAKING, Filled): (Row(_S.BREAKING, name="nothing is written any more"),),
    (_S.BREAKING, AllFilled): (Row(_S.BREAKING, name="nothing is written any more"),),
    (_S.BREAKING, Cancel): (Row(_S.BREAKING, name="given up already"),),
    **{
        (state, event): (Row(state, name="ended"),)
        for state in (_S.VERIFIED, _S.FAILED)
        for event in (Filled, AllFilled, Checked, ReceiptBroke, Cancel, WriteBroke, Written, Unsent)
    },
}
