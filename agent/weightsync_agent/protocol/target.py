"""One engine rank's arena: whose bytes may land in it, and what they are. Rules:

- a grant replaces an older one only once the older is quiet (fence.py): its writers are terminal, or the
  receiving worker was killed and the arena registered anew in another worker;
- a bucket counts as verified only if it was digested here, after its writer said that its write is terminal;
- Sealed is written only after every writer is terminal, the buckets cover the whole shard of every stage
  without overlap, and their root is the one that the coordinator decided;
- from its seal to its commit's end, and while the engine copies from it, the arena is kept: no grant is given, and
  nothing is read into it;
- our own worker fills it only where it is quiet, and has ended before anybody else may; what it verified of a version
  still counts when it goes on with that version, as long as nobody was granted the arena since;
- in a sync it does so under the sync's own grant, of whose writers none was ordered to write: what it reads another
  engine has verified under a grant of the same sync. What is verified here others may read in the same way at once;
- an arena that is lent to certify the engine is quiet as for a grant, and what was verified in it is forgotten.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import ClassVar

from weightsync.buckets import Extent, first_gap
from weightsync.digests import BucketDigest, program_root, version_root
from weightsync.errors import Refused
from weightsync.version import Version
from weightsync.wire.v1 import CommitRequest, GrantRequest
from weightsync_agent.protocol.fence import PULL, OpenGrant
from weightsync_agent.protocol.table import Machine, Row


class TargetState(Enum):
    """What the arena is."""

    EMPTY = "no grant was given in this life"
    FENCING = "the receiving worker is being replaced, since a writer of the old grant may still write"
    FILLING = "writers may write"
    PULLING = "our own worker reads a version into it, and nobody writes"
    SEALED = "the bytes are a version"
    KEPT = "the bytes are a version, and the engine copies them or is about to"
    LENT = "the engine's own checkpoint is in it, while the engine is certified"


@dataclass(frozen=True)
class Ask:
    """A coordinator asks for a grant; ``grant`` is the fresh name that it would get."""

    request: GrantRequest
    grant: str


@dataclass(frozen=True)
class Fenced:
    """The receiving worker was killed and a new one has registered the arena."""


@dataclass(frozen=True)
class FenceFailed:
    """No new worker could be started."""

    message: str


@dataclass(frozen=True)
class Landed:
    """Digests that this side computed over buckets whose writes are terminal, beside what the writer said."""

    grant: str
    computed: tuple[BucketDigest, ...]
    claimed: tuple[BucketDigest, ...]


@dataclass(frozen=True)
class LastReceipt:
    """A writer has no write in flight and starts no other."""

    grant: str
    writer: str
    failed: str


@dataclass(frozen=True)
class Commit:
    """The decision has come; the rank's bytes are to be sealed as its version."""

    request: CommitRequest
    rank: int


@dataclass(frozen=True)
class Keep:
    """A commit, a copy into the engine or a comparison with it begins: the sealed arena stays as it is."""


@dataclass(frozen=True)
class Release:
    """One of those has ended. As many of them as of Keep end it."""


@dataclass(frozen=True)
class Lend:
    """The engine is to be certified: its own checkpoint is copied into the arena and applied from there."""


@dataclass(frozen=True)
class Returned:
    """Nothing of it is needed any more."""


@dataclass(frozen=True)
class Pull:
    """Our own worker is to read this decided version into it, under the fresh name ``grant``.

    fence: whoever may still write there has been silent for longer than a sync lasts.
    """

    version: Version
    term: int
    grant: str
    fence: bool = False


@dataclass(frozen=True)
class Relay:
    """Our own worker is to read into it under the open grant of that name: its writers got no order, and get none."""

    grant: str


@dataclass(frozen=True)
class PullEnded:
    """Our reading worker has ended: no byte of its comes any more."""


@dataclass(frozen=True)
class Recovered:
    """At start: the arena found in the volume is sealed and its bytes were compared with the journal's digests."""

    version: Version
    grant: str
    program: str
    buckets: tuple[BucketDigest, ...]


@dataclass(frozen=True)
class WriteFilling:
    """Action: mark the arena Filling under this grant, before anything is answered."""

    grant: str


@dataclass(frozen=True)
class GiveGrant:
    """Action: answer the asker."""

    grant: str


@dataclass(frozen=True)
class ReplaceWorker:
    """Action: kill the receiving worker and start another, in the background; then Fenced or FenceFailed."""


@dataclass(frozen=True)
class AnswerReceipt:
    """Action: tell the writer which buckets are equal."""

    verified: tuple[int, ...]
    unequal: tuple[int, ...]


@dataclass(frozen=True)
class Seal:
    """Action: mark the arena Sealed with the version."""

    grant: str
    version: Version


@dataclass(frozen=True)
class RefuseAsk:
    """Action: refuse the asker; it asks again until the fence is through."""

    message: str


@dataclass(frozen=True)
class RankArena:
    """One of a rank's arenas. version: of its bytes, None where they are none."""

    state: TargetState
    version: Version | None = None


def choose(arenas: Sequence[RankArena], served: Version | None) -> int:
    """Which of a rank's arenas the next grant is for.

    One that is being filled or fenced comes first: two of a rank are never filled at once, and its fence must be
    passed. Then an empty one; then a sealed one, and last of all the one whose version the engine serves: as long as
    there are two, that one stays for an engine that restarts.
    """
    order = [
        *(TargetState.PULLING, TargetState.FENCING, TargetState.FILLING, TargetState.EMPTY),
        *(TargetState.SEALED, TargetState.KEPT, TargetState.LENT),
    ]

    def cost(index: int) -> tuple[int, bool, int]:
        arena = arenas[index]
        number = arena.version.number if arena.version is not None else 0
        return order.index(arena.state), arena.version is not None and arena.version == served, number

    return min(range(len(arenas)), key=cost)


class Target(Machine[TargetState]):
    """See the module's rules. expected: the extents that all stages together must cover."""

    filling: ClassVar[Enum] = TargetState.FILLING  # where receipts of the open grant count
    sealed: ClassVar[Enum] = TargetState.SEALED  # where the bytes are a version

    def __init__(self, rank: int, layout: str, program: str, expected: list[Extent]) -> None:
        super().__init__(TargetState.EMPTY)
        self.rank = rank
        self.layout = layout
        self.program = program
        self.expected = expected
        self.grant: OpenGrant | None = None
        self.verified: dict[int, BucketDigest] = {}
        self.version: Version | None = None
        self.keepers = 0

    def check_ask(self, request: GrantRequest) -> None:
        """Raises Refused where the asker's idea of this rank is not ours."""
        if request.program != self.program or request.layout != self.layout:
            raise Refused(
                f"rank {self.rank} holds layout {self.layout}, program {self.program}; "
                f"asked for {request.layout}, {request.program}: the plan is older than this engine",
                reason="LayoutMismatch",
            )
        if self.state is TargetState.KEPT:
            raise Refused(f"rank {self.rank} is being committed; ask again", reason="Busy", status=503)
        if self.state is TargetState.LENT:
            raise Refused(f"rank {self.rank} is being certified; ask again", reason="Busy", status=503)
        if self.state is TargetState.PULLING:
            raise Refused(f"rank {self.rank} ends its own reader; ask again", reason="Fencing", status=503)
        if self.state is TargetState.FENCING:
            raise Refused(f"rank {self.rank} replaces its transfer worker; ask again", reason="Fencing", status=503)

    def check_grant(self, grant: str, writer: str | None = None) -> OpenGrant:
        """The open grant of that name. Raises Refused for another, or for a writer that it does not name."""
        if self.grant is None or self.grant.grant != grant or self.state is not self.filling:
            raise Refused(f"grant {grant} is not open at rank {self.rank}", reason="GrantClosed")
        if writer is not None and writer not in self.grant.writers:
            raise Refused(f"{writer} is no writer of grant {grant}", reason="NotAWriter", status=403)
        return self.grant

    def check_writing(self, grant: str, writer: str) -> None:
        """The writer's part of that grant is open. Raises Refused where it is not, as check_grant does."""
        if writer not in self.check_grant(grant, writer).open:
            raise Refused(f"{writer} closed its part of grant {grant}", reason="GrantClosed")

    def check_passing(self, grant: str, after: int) -> tuple[BucketDigest, ...]:
        """What is verified under that grant, beyond the first ``after``: to be read by others. Raises Refused."""
        if not self.current(grant) or self.state not in _WHOLE_OR_GROWING:
            raise Refused(f"grant {grant} is not open at rank {self.rank}: {self.state.value}", reason="GrantClosed")
        return tuple(self.verified.values())[after:]

    def check_growing(self, grant: str, after: int) -> tuple[BucketDigest, ...]:
        """As check_passing(), of what our own worker reads in no sync. Raises Refused once it ended without all."""
        found = self.check_passing(grant, after)
        if not found and self.state is TargetState.FILLING and self.missing():
            raise Refused(f"rank {self.rank} reads no more of grant {grant}", reason="NotHeld", status=404)
        return found

    def grows(self, version: Version) -> str:
        """The grant under which our own worker reads that version, or has read all of it; "" where it does not."""
        pulled = self.grant is not None and self.grant.sync == f"{PULL}{version.root}"
        if self.grant is None or not pulled or self.state not in _WHOLE_OR_GROWING:
            return ""
        return self.grant.grant if self.state is not TargetState.FILLING or not self.missing() else ""

    def missing(self) -> str:
        """Why the verified buckets are not the whole replica; "" where they are."""
        runs = sorted((b.offset, b.offset + b.nbytes) for b in self.verified.values())
        for (_, stop), (start, _) in pairwise(runs):
            if start < stop:
                return f"bytes at {start} were verified twice, in different buckets"
        gap = first_gap(runs, self.expected)
        return f"bytes {gap[0]} to {gap[1]} were not verified" if gap else ""

    def check_commit(self, request: CommitRequest) -> None:
        """Raises Refused unless this rank's verified bytes are what the version's root says."""
        mine = next((r for r in request.ranks if r.rank == self.rank), None)
        if mine is None or mine.program != self.program:
            raise Refused(
                f"the commit does not name rank {self.rank} with program {self.program}", reason="Incomplete"
            )
        if self.state is self.sealed and self.grant and self.grant.grant == mine.grant:
            if self.version == request.version:
                return
            raise Refused(
                f"rank {self.rank} is sealed as {self.version}, not {request.version}", reason="WrongVersion"
            )
        grant = self.check_grant(mine.grant)
        if not grant.quiet:
            raise Refused(f"writers {sorted(grant.open)} of rank {self.rank} are not terminal", reason="NotQuiet")
        if (grant.lineage, grant.number) != (request.version.lineage, request.version.number):
            raise Refused(
                f"grant {grant.grant} is for {grant.lineage}.{grant.number}, not {request.version.name}",
                reason="WrongVersion",
            )
        lack = self.missing()
        if lack:
            raise Refused(f"rank {self.rank}: {lack}", reason="NotVerified")
        root = program_root(self.verified.values())
        if request.programs.get(self.program) != root:
            raise Refused(f"rank {self.rank}: the bytes' root {root} is not the decided one", reason="DigestMismatch")
        whole = version_root(request.version.lineage, request.version.number, request.programs)
        if whole != request.version.root:
            raise Refused(
                f"version {request.version.name}: its root does not follow from its programs", reason="BadRoot"
            )

    def _open(self, event: Ask) -> OpenGrant:
        r = event.request
        writers = frozenset(w.key for w in r.writers)
        return OpenGrant(
            event.grant, r.term, r.coordinator, r.sync, r.lineage, r.number, r.program, writers, set(writers)
        )

    def _begin(self, grant: OpenGrant) -> list[object]:
        self.grant, self.verified, self.version = grant, {}, None
        self.state = TargetState.FILLING
        return [WriteFilling(grant.grant), GiveGrant(grant.grant)]

    def _ask(self, event: Ask, now: float) -> list[object]:
        return self._begin(self._open(event))

    def _fence(self, event: Ask | Lend | Pull, now: float) -> list[object]:
        writers = sorted(self.grant.open) if self.grant else []
        why = f"{', '.join(writers)} may still write: its transfer worker is replaced; ask again"
        return [ReplaceWorker(), RefuseAsk(why)]

    def _pull(self, event: Pull, now: float) -> list[object]:
        v, sync = event.version, f"{PULL}{event.version.root}"
        kept = self.verified if self.grant is not None and self.grant.sync == sync else {}
        self.grant = OpenGrant(event.grant, event.term, "", sync, v.lineage, v.number, self.program)
        self.verified, self.version = kept, None
        return [WriteFilling(event.grant)]

    def _relay(self, event: Relay, now: float) -> list[object]:
        if self.grant is not None:
            self.grant.open.clear()
        return []

    def _forget(self, event: Lend, now: float) -> list[object]:
        self.grant, self.verified, self.version = None, {}, None
        return []

    def _fenced(self, event: Fenced, now: float) -> list[object]:
        self.grant, self.verified, self.version = None, {}, None
        return []

    def _fence_failed(self, event: FenceFailed, now: float) -> list[object]:
        return self._fenced(Fenced(), now)

    def _landed(self, event: Landed, now: float) -> list[object]:
        equal = [c for c, said in zip(event.computed, event.claimed, strict=True) if c == said]
        self.verified.update({bucket.offset: bucket for bucket in equal})
        offsets = {bucket.offset for bucket in equal}
        return [
            AnswerReceipt(tuple(sorted(offsets)), tuple(c.offset for c in event.claimed if c.offset not in offsets))
        ]

    def _last(self, event: LastReceipt, now: float) -> list[object]:
        if self.grant is not None:
            self.grant.open.discard(event.writer)
            if event.failed:
                self.grant.failed[event.writer] = event.failed
        return []

    def _seal(self, event: Commit, now: float) -> list[object]:
        assert self.grant is not None  # noqa: S101 - FILLING has a grant, by this table alone
        self.version = event.request.version
        return [Seal(self.grant.grant, self.version)]

    def _keep(self, event: Keep, now: float) -> list[object]:
        self.keepers += 1
        return []

    def _release(self, event: Release, now: float) -> list[object]:
        self.keepers -= 1
        return []

    def _recover(self, event: Recovered, now: float) -> list[object]:
        v = event.version
        self.version = v
        self.verified = {bucket.offset: bucket for bucket in event.buckets}
        self.grant = OpenGrant(event.grant, 0, "", "", v.lineage, v.number, event.program)
        return []

    def current(self, grant: str) -> bool:
        """That grant is the open one."""
        return self.grant is not None and self.grant.grant == grant

    def awaits_commit(self) -> bool:
        """A sync's writers are done, all is verified, and the sync's commit has not come."""
        granted = self.state is TargetState.FILLING and self.grant is not None and not self.grant.pulled
        return granted and self.quiet() and not self.missing()

    def quiet(self) -> bool:
        """No writer of an earlier grant can land another byte."""
        return self.grant is None or self.grant.quiet


_S = TargetState
_WHOLE_OR_GROWING = (_S.FILLING, _S.PULLING, _S.SEALED, _S.KEPT)
_PULL = (
    Row(_S.PULLING, Target._pull, lambda m, e: m.quiet(), "the arena is quiet: read into it"),
    Row(_S.FENCING, Target._fence, lambda m, e: e.fence, "its writers are silent: kill the receiver first"),
)
_ASK = (
    Row(_S.FILLING, Target._ask, lambda m, e: m.quiet(), "the arena is quiet: grant"),
    Row(_S.FENCING, Target._fence, name="a writer may still write: kill the receiver first"),
)
_LEND = (
    Row(_S.LENT, Target._forget, lambda m, e: m.quiet(), "the arena is quiet: lend it"),
    Row(_S.FENCING, Target._fence, name="a writer may still write: kill the receiver first"),
)
Target.table = {
    (_S.EMPTY, Ask): _ASK[:1],
    (_S.EMPTY, Recovered): (Row(_S.SEALED, Target._recover, name="the volume outlived the agent"),),
    (_S.FILLING, Ask): _ASK,
    (_S.SEALED, Ask): _ASK,
    (_S.EMPTY, Pull): _PULL[:1],
    (_S.FILLING, Pull): _PULL,
    (_S.SEALED, Pull): _PULL[:1],
    (_S.FILLING, Relay): (
        Row(_S.PULLING, Target._relay, lambda m, e: m.current(e.grant), "nobody was ordered to write: read"),
    ),
    (_S.PULLING, Landed): (Row(_S.PULLING, Target._landed, lambda m, e: m.current(e.grant), "compare digests"),),
    (_S.PULLING, PullEnded): (Row(_S.FILLING, name="quiet: what is verified stays so"),),
    (_S.EMPTY, Lend): _LEND[:1],
    (_S.FILLING, Lend): _LEND,
    (_S.SEALED, Lend): _LEND,
    (_S.LENT, Lend): (Row(_S.LENT, name="lent already"),),
    (_S.FENCING, Lend): (
        Row(_S.FENCING, lambda m, e, now: [RefuseAsk("its transfer worker is replaced")], name="not yet"),
    ),
    (_S.LENT, Returned): (Row(_S.EMPTY, name="the engine is certified"),),
    (_S.FENCING, Fenced): (Row(_S.EMPTY, Target._fenced, name="the old writers reach nobody"),),
    (_S.FENCING, FenceFailed): (Row(_S.EMPTY, Target._fence_failed, name="no worker: nobody reaches the arena"),),
    (_S.FILLING, Landed): (Row(_S.FILLING, Target._landed, lambda m, e: m.current(e.grant), "compare digests"),),
    (_S.FILLING, LastReceipt): (
        Row(_S.FILLING, Target._last, lambda m, e: m.current(e.grant), "a writer is terminal"),
    ),
    (_S.FILLING, Commit): (Row(_S.SEALED, Target._seal, name="verified and decided"),),
    (_S.SEALED, Commit): (Row(_S.SEALED, name="decided before"),),
    (_S.SEALED, Keep): (Row(_S.KEPT, Target._keep, name="it stays as it is"),),
    (_S.KEPT, Keep): (Row(_S.KEPT, Target._keep, name="for one more"),),
    (_S.KEPT, Release): (
        Row(_S.KEPT, Target._release, lambda m, e: m.keepers > 1, "another still needs it"),
        Row(_S.SEALED, Target._release, name="nobody needs it as it is"),
    ),
}
