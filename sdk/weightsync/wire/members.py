"""Between the agents of one engine whose ranks live in several pods, version 1. Who calls whom:

member -> leader   POST /v1/members              I am here; answers which ranks are mine, and what the engine is
leader -> member   POST /v1/member/arenas        what do your arenas hold?
                   POST /v1/member/recoveries    do they hold this version, byte for byte?
                   POST /v1/member/certificates  lend, fill, seal, take back an arena: the engine is certified
                   POST /v1/member/holds         seal them as what was decided, and grant nothing meanwhile
                   POST /v1/member/releases      the commit is over
                   POST /v1/member/asks          leave these requests for the hook
                   POST /v1/member/results       what came of them?
                   POST /v1/member/withdrawals   it is too late for them

Whatever the leader asks is meant for one pod and one life of its agent: another refuses it.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from weightsync.arena import ArenaState
from weightsync.bounds import LARGEST, MANY, MOST_RANKS, Rank, Size
from weightsync.digests import BucketDigest
from weightsync.records import WireRecord
from weightsync.version import Hex16, Hex32, Version
from weightsync.wire.v1 import CommitRequest

Uid = Annotated[str, Field(min_length=1, max_length=128)]
FileName = Annotated[str, Field(max_length=255, pattern=r"^[^/]*$")]
Node = Annotated[int, Field(ge=1, lt=MOST_RANKS)]  # a pod's place in its engine; the leader's is 0


class MemberRank(WireRecord):
    """A rank that a member holds. arenas: their file names in its own volume."""

    rank: Rank
    layout: Hex32
    program: Hex32
    arenas: Annotated[tuple[FileName, ...], Field(min_length=1, max_length=2)]


class MemberHere(WireRecord):
    """A member tells its leader that it is there, again and again.

    life: of the member's agent, which forgets its grants when it restarts; ranks: none before the leader has said
    which; written: by rank, the process into which a version was last let, whoever led the engine then.
    """

    uid: Uid
    life: Hex16
    address: Annotated[str, Field(max_length=256)]
    node: Node
    ranks: Annotated[tuple[MemberRank, ...], Field(max_length=64)] = ()
    written: dict[Rank, str] = Field(default_factory=dict)


class EngineOf(WireRecord):
    """What a member's engine is, as its leader knows. ranks: the member's, () while the engine does not answer.

    life: of the leader's agent; busy: a commit runs, or a look that may certify the engine.
    """

    leader: Uid
    life: Hex16
    ranks: Annotated[tuple[Rank, ...], Field(max_length=64)] = ()
    engine_ranks: Annotated[int, Field(ge=0, le=MOST_RANKS)] = 0
    incarnation: Annotated[str, Field(max_length=128)] = ""
    ready: bool = False
    gate: bool = False
    version: Version | None = None
    busy: bool = False


class Call(WireRecord):
    """What every request of a leader carries. target and life: the pod and the agent that are meant."""

    leader: Uid
    target: Uid
    life: Hex16


class SealedRank(WireRecord):
    """A rank's replica, as it was verified."""

    rank: Rank
    program: Hex32
    arena: FileName
    buckets: Annotated[tuple[BucketDigest, ...], MANY] = ()


class Hold(Call):
    """Keep these grants' arenas as they are: the engine applies ``version`` from them. grants: by rank.

    commit: the decision by which they are to be sealed first; None: they are sealed as that version already.
    """

    version: Version
    grants: dict[Rank, Hex32]
    commit: CommitRequest | None = None


class Held(WireRecord):
    """The certificate: these ranks are sealed as the version, by that decision, and stay so until the release."""

    uid: Uid
    life: Hex16
    term: Annotated[int, Field(ge=0, le=LARGEST)]
    coordinator: str
    version: Version
    ranks: Annotated[tuple[SealedRank, ...], MANY]


class Release(Call):
    """The commit has ended, however. grants: those that were held for it: one that comes late frees no others."""

    grants: dict[Rank, Hex32] = Field(default_factory=dict)


class HookRank(WireRecord):
    """What the hook of one rank is asked. arena: a file's name; incarnation: the process that is meant."""

    rank: Rank
    arena: FileName = ""
    layout: str = ""
    program: str = ""
    grant: str = ""
    root: str = ""
    incarnation: str = ""
    digests: bool = False
    parameters: Annotated[tuple[str, ...], MANY] = ()


class HookAsk(Call):
    """Leave these requests where the engine's processes look for them."""

    op: Literal["describe", "pin", "apply", "snapshot", "readback"]
    ranks: Annotated[tuple[HookRank, ...], Field(max_length=64)]


class HookAsked(WireRecord):
    """The requests' names, by rank."""

    ids: dict[Rank, str]


class HookIds(Call):
    """Requests that were left before."""

    ids: dict[Rank, str]


class HookFailure(WireRecord):
    """Why a rank has no result that counts."""

    reason: Annotated[str, Field(max_length=64)]
    message: str
    retryable: bool


class HookResults(WireRecord):
    """By rank, the hook's results, and why there is none."""

    records: dict[Rank, dict[str, Any]] = Field(default_factory=dict)
    failures: dict[Rank, HookFailure] = Field(default_factory=dict)


class Certify(Call):
    """One step of a certification on the engine's own checkpoint. grants: by rank, what Fill and Seal are under.

    certificate: which one; of one that is over nothing has effect any more.
    """

    certificate: Hex16
    step: Literal["Lend", "Fill", "Seal", "Return"]
    grants: dict[Rank, Hex32] = Field(default_factory=dict)


class ArenaOf(WireRecord):
    """What one arena's header says."""

    rank: Rank
    arena: FileName
    state: ArenaState
    nbytes: Size
    layout: Hex32
    program: Hex32
    grant: Hex32
    version: Version | None = None


class AskArenas(Call):
    """What do the arenas hold?"""


class Arenas(WireRecord):
    """All arenas of a member."""

    arenas: tuple[ArenaOf, ...]


class Recover(Call):
    """Compare the arenas with what was verified once, and take them over where they are equal."""

    version: Version
    ranks: Annotated[tuple[SealedRank, ...], MANY]


class Recovered(WireRecord):
    """equal: every rank asked for holds the version, byte for byte; grants: by rank, under which it was sealed."""

    equal: bool
    grants: dict[Rank, Hex32] = Field(default_factory=dict)
