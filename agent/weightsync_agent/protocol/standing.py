"""What a coordinator knows of engines, what each of them is due for, and the version that they should serve. Pure."""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from weightsync.plan import Engine
from weightsync.version import Version
from weightsync.wire.v1 import AgentStatus, EngineOutcome
from weightsync_agent.protocol import relaying
from weightsync_agent.protocol.repair import backoff, rejoin
from weightsync_agent.protocol.sync import Sync, percentile

WELCOME_SECONDS = 5.0  # between two welcomes of an engine: it may have been restarted, or missed the first
ASK_CURRENT = 15.0  # between two questions to an engine that serves the version: its restarts are announced
ASK_OTHERS = 1.0  # and to one that does not, or has not said
SOURCE_SECONDS = 2.0  # until a version that its sources lack is tried again
# Of the sources, or of the engines that were to feed it: no reason to leave the engine out of the next sync.
OTHERS_FAULT = frozenset({"NotFilled", "SourceGone", "ShardsMissing", "CoverageIncomplete", relaying.LOST})


class Standing(Enum):
    """One engine, as the coordinator knows it."""

    JOINING = "new in the plan; has not been fed yet"
    CURRENT = "serves the last decided version"
    BEHIND = "serves an older one, or none, and will be repaired"


@dataclass
class Known:
    """What is known of one life of one engine."""

    engine: Engine
    standing: Standing = Standing.JOINING
    version: str = ""
    failures: int = 0
    retry_at: float = 0.0
    welcome_at: float = 0.0
    ask_at: float = 0.0
    pulls: bool = False  # it said that it gets the version by itself, from another engine
    served: bool = False  # it was told to serve some version before
    missed: bool = False  # a sync that it was part of did not bring it its version
    asked: bool = False  # it has said what it serves, in this life of ours
    well: bool = False  # it has said that its engine is ready, and neither failed nor was silent since
    rejoin_at: float = 0.0  # after a failure: from when on a publish takes it in, where no repair could
    reason: str = ""
    message: str = ""

    def became_current(self, version: str) -> None:
        """It serves the last decided version."""
        self.standing, self.version = Standing.CURRENT, version
        self.failures, self.reason, self.message = 0, "", ""

    def fell_behind(self, outcome: EngineOutcome, now: float, blameless: bool = False) -> None:
        """A sync did not bring it its version; when it is tried again. blameless: that was its sources' doing."""
        self.missed = True
        if self.standing is not Standing.JOINING:
            self.standing = Standing.BEHIND
        if outcome.outcome == "Superseded":
            self.retry_at = now
            return
        if outcome.outcome != "Failed":
            return
        self.reason, self.message = outcome.reason, outcome.message
        if not own_fault(outcome, blameless):
            self.retry_at = now + SOURCE_SECONDS
            return
        self.failures += 1
        self.well = False
        self.retry_at = now + backoff(self.failures)
        self.rejoin_at = now + rejoin(self.failures)

    def holds_others(self, now: float) -> bool:
        """It failed, and a publish is not to wait for it yet: not until it answers, and the later the more it failed.

        It is not left to repairs for good, since none is begun where publishes follow each other at once.
        """
        return self.failures > 0 and not (self.well and now >= self.rejoin_at)

    def ask(self, now: float, ask_current: float) -> bool:
        """Whether it is asked now what it serves; each in its own rhythm."""
        if now < self.ask_at:
            return False
        self.ask_at = now + (ask_current if self.standing is Standing.CURRENT else ASK_OTHERS)
        return True

    def welcome(self, now: float) -> bool:
        """Whether it is told now that nothing was published yet."""
        if now < self.welcome_at:
            return False
        self.welcome_at = now + WELCOME_SECONDS
        return True

    def to_repair(self, now: float, policy: Literal["Peer", "NextVersion"]) -> bool:
        """It lacks the last version, and said so: one that serves it would lose its replica. policy: joinPolicy."""
        lacks = self.asked and self.standing is not Standing.CURRENT and self.retry_at <= now
        return lacks and not self.pulls and not self._waits_for_next(policy)

    def _waits_for_next(self, policy: Literal["Peer", "NextVersion"]) -> bool:
        """It came since the last publish, never had a version, and is to get the next one.

        A publish that was to bring it one, and did not, is made good by a repair as for any engine.
        """
        new = self.standing is Standing.JOINING and not self.served and not self.missed
        return policy == "NextVersion" and new

    def fits(self, programs: Container[str]) -> bool:
        """A version of these programs can be its."""
        return all(target.rank.program in programs for target in self.engine.targets)

    def silent(self) -> None:
        """It was asked, and did not answer."""
        self.well = False
        if self.standing is not Standing.CURRENT and not self.failures:
            self.reason, self.message = "Silent", f"the agent of {self.engine.name} does not answer"

    def said(self, status: AgentStatus) -> None:
        """It has answered, in the life that is known."""
        self.asked, self.pulls, self.served = True, status.pulls, status.decided is not None
        self.well = status.ready
        if self.reason == "Silent" and not self.failures:
            self.reason, self.message = "", ""

    def changed(self, version: str, now: float) -> None:
        """It was current, and serves that, or nothing, by now."""
        self.standing, self.version, self.retry_at = Standing.BEHIND, version, now
        self.reason, self.message = "EngineChanged", f"{self.engine.name} serves {version or 'nothing'}"


def own_fault(outcome: EngineOutcome | None, blameless: bool) -> bool:
    """The engine failed, and that was not the doing of its sources, or of who was to feed it."""
    failed = outcome is not None and outcome.outcome == "Failed" and outcome.reason not in OTHERS_FAULT
    return failed and not blameless


def age(engines: Mapping[str, Known], sync: Sync) -> None:
    """Engines that joined while the version was synced do not hold it."""
    for key, known in engines.items():
        if key not in sync.members and known.standing is Standing.CURRENT:
            known.standing = Standing.BEHIND


@dataclass
class Sealed:
    """The last decided version: what repairs deliver. term: that it was decided in."""

    version: Version
    label: str
    roots: dict[str, str]
    term: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Of two decided versions the one that is decided later is greater: a new lineage begins in a new term."""
        return self.term, self.version.number


@dataclass
class LastSync:
    """Figures of the last sync that was decided."""

    version: str
    label: str
    engines: int
    nbytes: int
    seconds: float
    pauses: list[float] = field(default_factory=list)
    routes: dict[str, int] = field(default_factory=dict)  # transport -> routes to engines that are current

    @classmethod
    def of(cls, sync: Sync, version: Version, nbytes: int, now: float) -> "LastSync":
        """Those of a sync that has ended."""
        current = [m.outcome for m in sync.members.values() if m.outcome and m.outcome.outcome == "Current"]
        return cls(
            version=version.name,
            label=sync.label,
            engines=len(current),
            nbytes=nbytes,
            seconds=now - sync.started,
            pauses=[outcome.pause_seconds for outcome in current],
            routes=dict(Counter(route.transport for outcome in current for route in outcome.routes)),
        )

    def pause(self, share: float) -> float:
        """A percentile of the engines' pauses, in seconds."""
        return percentile(self.pauses, share)
