"""All that can happen to a coordinator, and all that it can ask for. Frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass

from weightsync.plan import Engine, Plan, Target
from weightsync.version import Version
from weightsync.wire.v1 import (
    AgentStatus,
    CommitAnswer,
    CommitRequest,
    Grant,
    GrantRequest,
    PublishOutcome,
    RelayEnd,
    RelayOrder,
    RouteEnd,
    ShardDigests,
    SyncOrder,
    VoidRequest,
    WriterId,
)
from weightsync_agent.protocol.gather import Gathered

# --- events ---


@dataclass(frozen=True)
class PlanChanged:
    """A plan came from the cluster or the file."""

    plan: Plan


@dataclass(frozen=True)
class Published:
    """All ranks called publish(): a version is being filled."""

    gathered: Gathered


@dataclass(frozen=True)
class PublishBroken:
    """A rank's input was wrong, or it is gone: that version will never be whole."""

    lineage: str
    number: int
    reason: str
    message: str


@dataclass(frozen=True)
class GrantGiven:
    """A target granted its arena."""

    sync: str
    engine: str
    target: Target
    grant: Grant


@dataclass(frozen=True)
class GrantRefused:
    """A target refused, or did not answer."""

    sync: str
    engine: str
    rank: int
    reason: str
    message: str


@dataclass(frozen=True)
class OrderRefused:
    """A source did not take its order. certain: it said so; else it may have taken it all the same."""

    sync: str
    writer: WriterId
    certain: bool
    reason: str
    message: str


@dataclass(frozen=True)
class ShardFilled:
    """A source digested its shard."""

    shard: ShardDigests


@dataclass(frozen=True)
class RouteEnded:
    """A route was verified, or failed."""

    end: RouteEnd


@dataclass(frozen=True)
class RelayEnded:
    """An engine that was told to read from another has verified all of it, or failed, or did not answer."""

    sync: str
    engine: str
    turn: int
    end: RelayEnd


@dataclass(frozen=True)
class DecisionPersisted:
    """The decision is on disk: from here on the version is finished, whoever coordinates."""

    sync: str


@dataclass(frozen=True)
class DecisionFailed:
    """The decision could not be written: nothing was committed."""

    sync: str
    message: str


@dataclass(frozen=True)
class CommitDone:
    """An engine serves the version."""

    sync: str
    engine: str
    answer: CommitAnswer


@dataclass(frozen=True)
class CommitFailed:
    """An engine's leader refused or did not answer (then it may have committed all the same)."""

    sync: str
    engine: str
    reason: str
    message: str
    retryable: bool


@dataclass(frozen=True)
class StatusSeen:
    """An engine's leader said what it serves; None: it did not answer."""

    engine: str
    status: AgentStatus | None


@dataclass(frozen=True)
class Tick:
    """Time passed: deadlines, repairs, joins."""


# --- actions ---


@dataclass(frozen=True)
class AskGrant:
    """Handshake with one target rank; then GrantGiven or GrantRefused."""

    engine: str
    target: Target
    request: GrantRequest


@dataclass(frozen=True)
class VoidGrant:
    """Tell a target that these writers of its grant never got an order."""

    target: Target
    request: VoidRequest


@dataclass(frozen=True)
class SendOrder:
    """Tell a source rank what to write to whom."""

    writer: WriterId
    order: SyncOrder


@dataclass(frozen=True)
class Planted:
    """It was chosen who reads from whom: by engine key the one that feeds it, None for the sources."""

    sync: str
    tree: Mapping[str, str | None]


@dataclass(frozen=True)
class SendRelay:
    """Tell an engine's leader whom to read from, until it has ended; then RelayEnded."""

    engine: Engine
    order: RelayOrder


@dataclass(frozen=True)
class PersistDecision:
    """Write the decision to disk, synced; then DecisionPersisted."""

    sync: str
    term: int
    version: Version
    label: str
    programs: Mapping[str, str]


@dataclass(frozen=True)
class SendCommit:
    """Tell an engine's leader to apply; then CommitDone or CommitFailed."""

    engine: Engine
    request: CommitRequest
    timeout: float


@dataclass(frozen=True)
class EndOrder:
    """Tell a source rank that the sync is over: version is what was decided, None where nothing was."""

    writer: WriterId
    sync: str
    term: int
    version: Version | None


@dataclass(frozen=True)
class SendWelcome:
    """Nothing was published yet: the engine's initial gate may apply."""

    engine: Engine
    term: int


@dataclass(frozen=True)
class AskStatus:
    """What does the engine serve? Then StatusSeen."""

    engine: Engine


@dataclass(frozen=True)
class Outcome:
    """A publish has ended."""

    lineage: str
    number: int
    outcome: PublishOutcome


@dataclass(frozen=True)
class Changed:
    """The report's figures changed."""
