"""Agent to agent, version 1. Who calls whom:

source -> coordinator   POST /v1/publishes   a rank called publish(); answers when every rank has
                        POST /v1/names       checkpoint names of a stage; answers what the stage owns
                        POST /v1/shards      digests of a filled shard, once per order and program
                        POST /v1/routes      one route ended: verified, or failed with a reason
                        POST /v1/trouble     a rank's part of a version will never be whole
                        GET  /v1/outcomes/{lineage}/{number}?wait=seconds
coordinator -> source   POST /v1/orders      what to write to whom
                        POST /v1/orders/end  the sync is over
coordinator -> target   POST /v1/grants      may these writers fill your arena? (the handshake)
                        POST /v1/void        these writers never got an order: they will not write
                        POST /v1/relays      (to the leader) read the version from another engine, as it gets it;
                                             idempotent, and asked again until it has ended
                        POST /v1/commits     (to the leader) apply what was verified; idempotent
                        POST /v1/welcome     (to the leader) nothing was published yet: the gate may open
                        GET  /v1/status
source -> target        POST /v1/receipts    buckets whose writes are terminal: check them
target -> source        POST /v1/quiet       write no more under that grant, and say when nobody can
engine -> engine leader POST /v1/passes      buckets beyond those that I know which you verified under that grant
joiner -> coordinator   GET  /v1/held        the newest version that was decided
joiner -> engine leader GET  /v1/held        the decided version that can be read here, and how many read it
                        POST /v1/leases      may my workers read your arenas? Again to stay, or to hear that they go
                        POST /v1/leases/more buckets beyond those that I know of what you read yourself
                        POST /v1/leases/end  read no more
anyone -> agent         GET  /v1/programs/{digest}, GET /v1/announcement

Every request of the data path carries the coordinator's term; an older one is refused (reason StaleTerm).
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from weightsync.announcement import DeviceName, Mode
from weightsync.bounds import LARGEST, MANY, Number, Offset, Rank, Ranks, Size, Term
from weightsync.digests import BucketDigest
from weightsync.plan import Protocol, Rdma, Strategy
from weightsync.records import WireRecord
from weightsync.version import Hex16, Hex32, Hex64, Version

MOST_TURNS = 1024
Seconds = Annotated[float, Field(ge=0, le=86400)]  # nothing here lasts, or is waited for, longer than a day


class Problem(WireRecord):
    """Body of every answer over 399."""

    reason: str
    message: str


Transport = Literal["tcp", "rdma"]


class Capabilities(WireRecord):
    """What both ends of a route must agree on before a byte moves. settings: the MC_* that change the wire."""

    protocol: Literal[1] = 1
    mooncake: str
    transport: Transport
    tcp_protocol: Annotated[int, Field(ge=1)] = 2
    settings: dict[str, str] = Field(default_factory=dict)


class Run(WireRecord):
    """Bytes [offset, offset + nbytes) of a payload lie at ``address``."""

    offset: Offset
    nbytes: Size
    address: Offset


class Region(WireRecord):
    """Where a payload of ``nbytes`` bytes may be written: ``session`` is what Mooncake dials.

    An arena of a transfer worker lies at ``address`` as a whole. An engine's own parameters lie in ``runs``, by
    rising offset and apart; what is in none of them is padding, lies nowhere, and counts as zeros. address is 0 then,
    where nothing can be registered.
    """

    session: str
    address: Offset
    nbytes: Size
    runs: Annotated[tuple[Run, ...], MANY] = ()


class WriterId(WireRecord):
    """A source rank."""

    uid: str
    rank: Rank

    @property
    def key(self) -> str:
        """For dictionaries."""
        return f"{self.uid}/{self.rank}"


class PublishRequest(WireRecord):
    """A rank calls publish() for the n-th time in its life.

    offset: what makes the ranks' counts equal, zero for all that began together; a rank that restarted alone learns
    it from the first version of its new life. programs: what this rank is about to fill, by the plan that it has;
    None: it did not say.
    """

    writer: WriterId
    world_size: Ranks
    stage: Rank
    stages: Ranks
    nonce: Hex16
    sequence: Number
    offset: Annotated[int, Field(ge=0, lt=2**63)] = 0
    label: Annotated[str, Field(max_length=256)] = ""
    programs: Annotated[tuple[Hex32, ...] | None, MANY] = None

    @model_validator(mode="after")
    def _counted(self) -> "PublishRequest":
        if self.writer.rank >= self.world_size or self.stage >= self.stages:
            ranks, stages = f"rank {self.writer.rank} of {self.world_size}", f"stage {self.stage} of {self.stages}"
            raise ValueError(f"{ranks}, {stages}: both count from 0")
        if self.sequence + self.offset > LARGEST:
            raise ValueError(f"publish {self.sequence}, {self.offset} later: no version has such a number")
        return self

    @property
    def step(self) -> int:
        """Which of the ranks' common publishes it is."""
        return self.sequence + self.offset


class PlannedRoute(WireRecord):
    """One target that this source rank writes its shard to, in one sync.

    transport: over which, as its target found; None: the one that the source's agent takes by itself.
    """

    engine: str
    target: str
    rank: Rank
    address: str
    program: Hex32
    layout: Hex32
    grant: Hex32
    region: Region
    transport: Transport | None = None


class SyncOrder(WireRecord):
    """What a source rank does for one sync: fill (or reuse) these programs' arenas, write these routes.

    bucket_size: upper bound in bytes; deadline_seconds counts from the receipt of the order; buckets are
    numbered by nobody: an offset names them. rdma: how routes over RDMA use the devices.
    """

    sync: str
    term: Term
    coordinator: str = ""
    lineage: Hex16
    number: Number
    bucket_size: Annotated[Size, Field(ge=4096)]
    deadline_seconds: Seconds
    stall_seconds: Seconds
    programs: Annotated[tuple[Hex32, ...], MANY] = ()
    routes: Annotated[tuple[PlannedRoute, ...], MANY] = ()
    rdma: Rdma = Rdma()


class NamesRequest(WireRecord):
    """The checkpoint names that one stage publishes, for one program; sent once per lineage and program."""

    term: Term
    writer: WriterId
    stage: Rank
    program: Hex32
    names: Annotated[tuple[str, ...], MANY]


class NamesAnswer(WireRecord):
    """The names that the stage owns of the program (a tied tensor belongs to the lowest stage)."""

    owned: Annotated[tuple[str, ...], MANY]


class ShardDigests(WireRecord):
    """All buckets of one stage's shard of one program, digested by a source after filling."""

    term: Term
    sync: str
    writer: WriterId
    stage: Rank
    program: Hex32
    buckets: Annotated[tuple[BucketDigest, ...], MANY]


class RouteEnd(WireRecord):
    """A route ended. verified: the target checked every bucket. resent: bytes written more than once."""

    term: Term
    sync: str
    writer: WriterId
    target: str
    rank: Rank
    grant: Hex32
    verified: bool
    reason: str = ""
    message: str = ""
    nbytes: int = 0
    resent: int = 0
    seconds: Seconds = 0.0
    transport: str = ""


class RouteTransport(WireRecord):
    """What carried bytes to a rank of an engine. why: what RDMA lacked, where it was wished for.

    source: key of the source rank that wrote them, "" where another engine passed them on, which ``engine`` names.
    """

    rank: Rank
    source: str
    transport: str
    engine: str = ""
    why: Annotated[str, Field(max_length=1024)] = ""


class EngineOutcome(WireRecord):
    """What became of one engine of the snapshot. staged_seconds: from the first rank's publish() to verified.

    routes: those whose bytes were verified.
    """

    engine: str
    outcome: Literal["Current", "Behind", "Gone", "Failed", "Superseded"]
    mode: Mode = "Staged"
    reason: str = ""
    message: str = ""
    pause_seconds: Seconds = 0.0
    apply_seconds: Seconds = 0.0
    staged_seconds: Seconds = 0.0
    routes: Annotated[tuple[RouteTransport, ...], MANY] = ()


class PublishOutcome(WireRecord):
    """Ended: every engine of the snapshot has its outcome; none and no error: NoTargets."""

    ended: bool
    version: Version | None = None
    engines: tuple[EngineOutcome, ...] = ()
    seconds: Seconds = 0.0
    nbytes: int = 0
    reason: str = ""
    message: str = ""


class GrantRequest(WireRecord):
    """The handshake with one target rank: these writers ask to fill its arena.

    ours: the writers' side; target: uid of the pod that is meant, which another may have replaced at its address;
    layout and program as the plan has them. A grant replaces an older one of the same rank only once the older is
    quiet. An engine in Direct mode is paused for it, in pause_mode; sources: by uid, the agent's address of every
    trainer pod of the plan: of those it learns when an older grant is quiet. protocol: what may carry the bytes;
    devices: by uid, the RDMA devices of the writers' pods, where they have any; rdma: how they are used.
    """

    term: Term
    coordinator: str
    sync: str
    target: str = ""
    rank: Rank
    layout: Hex32
    program: Hex32
    lineage: Hex16
    number: Number
    writers: Annotated[tuple[WriterId, ...], Field(min_length=1), MANY]
    ours: Capabilities
    pause_mode: Literal["Abort", "Retract", "InPlace"] = "Abort"
    sources: dict[str, str] = Field(default_factory=dict)
    protocol: Protocol = "Auto"
    devices: dict[str, tuple[DeviceName, ...]] = Field(default_factory=dict)
    rdma: Rdma = Rdma()


class Way(WireRecord):
    """How one writer's bytes reach the arena. why: what RDMA lacked, where it was wished for."""

    transport: Transport
    region: Region
    why: Annotated[str, Field(max_length=1024)] = ""


class Grant(WireRecord):
    """One permission to fill one arena. ways: by writer key; a writer without one takes ``region``.

    relays: the engine can pass on what it verifies, and read what another did, in place of being written to. lends:
    a joiner reads what it serves.
    """

    grant: Hex32
    region: Region
    theirs: Capabilities
    ways: dict[str, Way] = Field(default_factory=dict)
    relays: bool = False
    lends: bool = False


class VoidRequest(WireRecord):
    """These writers were named in a grant and never got an order: they will not write.

    Without it the target would have to kill its transfer worker before it can grant the range again.
    """

    term: Term
    coordinator: str
    rank: Rank
    grant: Hex32
    writers: Annotated[tuple[WriterId, ...], MANY]


class RelayRank(WireRecord):
    """One rank's open grant, and ``parent``: the one under which the same rank of the other engine is filled."""

    rank: Rank
    grant: Hex32
    parent: Hex32


class RelayOrder(WireRecord):
    """Nobody writes under these grants: read what another engine verifies under its own, bucket by bucket.

    turn: rises with each other parent that the coordinator names within the sync; target: uid of the pod that is
    meant; uid, address: of the parent's leader; engine: its name. deadline_seconds count from the receipt.
    """

    term: Term
    coordinator: str
    sync: str
    turn: Annotated[int, Field(ge=1, le=MOST_TURNS)]
    target: str = ""
    uid: str
    engine: str
    address: str
    ranks: Annotated[tuple[RelayRank, ...], Field(min_length=1), MANY]
    deadline_seconds: Seconds
    stall_seconds: Seconds


class RelayEnd(WireRecord):
    """How a relay ended, or that it has not yet: ask again.

    lost: what failed is the parent, or the way to it; another may do. nbytes: that were read.
    """

    ended: bool
    verified: bool = False
    lost: bool = False
    reason: str = ""
    message: str = ""
    nbytes: Annotated[int, Field(ge=0)] = 0
    transport: str = ""


class MoreRequest(WireRecord):
    """What is verified under that grant beyond the first ``after`` buckets? Answered once there is more, or later.

    reader: uid of the asking leader's pod; ours: its reading worker's side; wait: for more, at most.
    """

    reader: Annotated[str, Field(min_length=1, max_length=128)]
    rank: Rank
    grant: Hex32
    after: Annotated[int, Field(ge=0, lt=2**31)]
    wait: Seconds = 0.0
    ours: Capabilities


class PassRequest(MoreRequest):
    """As MoreRequest, in a sync of that term: its coordinator ordered the reader to read here."""

    term: Term


class PassAnswer(WireRecord):
    """Where the arena can be read, and more of its verified buckets, in the order in which they were."""

    region: Region
    buckets: Annotated[tuple[BucketDigest, ...], MANY] = ()


class Receipts(WireRecord):
    """Buckets whose writes are terminal at the source. last: the writer has no write in flight and sends no more.

    A failed last receipt closes the writer's part of the grant without verifying.
    """

    term: Term
    grant: Hex32
    rank: Rank
    writer: WriterId
    buckets: Annotated[tuple[BucketDigest, ...], MANY] = ()
    last: bool = False
    failed: str = ""


class ReceiptsAnswer(WireRecord):
    """Offsets of buckets that are equal, and of those that must be written again."""

    verified: Annotated[tuple[int, ...], MANY] = ()
    unequal: Annotated[tuple[int, ...], MANY] = ()


class QuietRequest(WireRecord):
    """Start no write under ``grant`` any more, and end every worker that has written to ``session``."""

    grant: Hex32
    session: Annotated[str, Field(max_length=256)]


class QuietAnswer(WireRecord):
    """quiet: no process of this agent that has written to the session is left. Ask again where it is not."""

    quiet: bool


class RankCommit(WireRecord):
    """What one rank of the engine must hold before it applies. pod: uid of the one that holds it, as the plan has it;
    "" where the coordinator is too old to say."""

    rank: Rank
    grant: Hex32
    program: Hex32
    pod: str = ""


class CommitRequest(WireRecord):
    """The decision, to an engine's leader. programs: program digest -> program root; with the version's root they
    are checked by the target itself. target: uid of the leader's pod."""

    term: Term
    coordinator: str
    sync: str
    target: str = ""
    version: Version
    label: str = ""
    programs: dict[Hex32, Hex64]
    ranks: Annotated[tuple[RankCommit, ...], MANY]
    strategy: Strategy


class CommitAnswer(WireRecord):
    """The engine serves the version."""

    version: str
    incarnation: str
    pause_seconds: Seconds
    apply_seconds: Seconds


class Welcome(WireRecord):
    """Nothing has been published in this coordinator's life and none is known: the initial gate applies."""

    term: Term
    coordinator: str
    initial_gate: Literal["Open", "Closed"] = "Open"


class RankStatus(WireRecord):
    """What one target rank holds: its arena, or in Direct mode the engine's parameters themselves.

    Draining: no grant is given before every writer of the last one is known to have ended.
    """

    rank: Rank
    state: Literal["Empty", "Filling", "Sealed", "Draining"]
    grant: str = ""
    version: str = ""


class Decided(WireRecord):
    """A version that a coordinator decided, as its commits echo it. programs: program digest -> program root."""

    version: Version
    label: str = ""
    term: Term
    programs: dict[Hex32, Hex64] = Field(default_factory=dict)


class AgentStatus(WireRecord):
    """What an engine's leader knows of its engine. version: what it serves, "torn:V" while it is applied to.

    decided: the newest version that it was told to commit, whether or not it could. pulls: it gets the newest version
    by itself, from another engine, or looks for one that has it: nobody need write to it meanwhile.
    """

    uid: str
    term: Term
    incarnation: str = ""
    ready: bool = False
    mode: Mode = "Staged"
    version: str = ""
    journal: Literal["", "Torn", "Current"] = ""
    gate: bool = False
    decided: Decided | None = None
    ranks: tuple[RankStatus, ...] = ()
    pulls: bool = False


class OrderEnd(WireRecord):
    """The sync is over. version: what was decided (the arenas are sealed as it); None: nothing was."""

    sync: str
    term: Term
    coordinator: str = ""
    writer: WriterId
    version: Version | None = None


class PublishAnswer(WireRecord):
    """All ranks are there: the version of this publish (its root is not known yet).

    life: of the coordinator: a new one knows no names yet and must be told. programs: that all ranks fill which feed
    an engine; stages meet over the names of these only. None: it did not say.
    """

    lineage: Hex16
    number: Number
    life: str = ""
    programs: Annotated[tuple[Hex32, ...] | None, MANY] = None

    def holds(self, program: str) -> bool:
        """An engine can be fed that program with this version."""
        return self.programs is None or program in self.programs


class PublishTrouble(WireRecord):
    """A rank's part of a version will never be whole."""

    writer: WriterId
    lineage: Hex16
    number: Number
    reason: str
    message: str


class Accepted(WireRecord):
    """The request was taken; what comes of it is told otherwise."""


class OrderFor(WireRecord):
    """An order, and the rank of the called agent that is to carry it out."""

    writer: WriterId
    order: SyncOrder


class ReadBackRequest(WireRecord):
    """Compare the engine's live parameters with the sealed replica."""


class ReadBackAnswer(WireRecord):
    """digest_ok: every rank's parameters are, byte for byte, the replica whose digests were verified."""

    version: str
    digest_ok: bool


class Held(WireRecord):
    """What a joiner may get. decided: None where nothing was decided, or none of it can be read here.

    readers: that read here now, joiners of at most ``most``, and engines that do so in a sync; an agent that only
    knows what was decided lends nothing: 0. grows: what the engine itself reads from another, and lends as it comes;
    behind: how many engines its bytes pass through until they are here.

    Of a coordinator, syncing: a sync goes on, whose version may be decided before any engine holds it; begins: nobody
    knows yet who passes it on; feeders: uids of the leaders of engines that do so now.
    """

    uid: str
    decided: Decided | None = None
    readers: Annotated[int, Field(ge=0)] = 0
    most: Annotated[int, Field(ge=0)] = 0
    grows: Decided | None = None
    behind: Annotated[int, Field(ge=0)] = 0
    syncing: bool = False
    begins: bool = False
    feeders: Annotated[tuple[str, ...], MANY] = ()


class LeaseRequest(WireRecord):
    """May the workers of ``reader`` (its leader's pod uid) read the arenas that hold this version?

    Asked again by the same reader it prolongs the lease. programs: of the reader's ranks, by rank; ours: the reading
    workers' side; waits: it reads no bucket before it was told that it is there.
    """

    reader: Annotated[str, Field(min_length=1, max_length=128)]
    version: Version
    programs: dict[Rank, Hex32]
    ours: Capabilities
    waits: bool = False


class HeldRank(WireRecord):
    """One rank's arena, and the digests of its bytes: of those that are there, and of those that are to come.

    grant: under which it is still being filled; "": all is there.
    """

    rank: Rank
    program: Hex32
    region: Region
    buckets: Annotated[tuple[BucketDigest, ...], MANY]
    grant: Hex32 | Literal[""] = ""


class Lease(WireRecord):
    """The arenas may be read for so many seconds. A sync that needs them takes them all the same: digests tell.

    behind: see Held.
    """

    uid: str
    decided: Decided
    seconds: Seconds
    ranks: Annotated[tuple[HeldRank, ...], MANY]
    behind: Annotated[int, Field(ge=0)] = 0


class LeaseEnd(WireRecord):
    """The reader reads no more."""

    reader: Annotated[str, Field(min_length=1, max_length=128)]
