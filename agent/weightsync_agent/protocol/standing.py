"""What a coordinator knows of engines, and of the version that they should serve. Pure."""

from dataclasses import dataclass, field
from enum import Enum

from weightsync.plan import Engine
from weightsync.version import Version
from weightsync_agent.protocol.sync import percentile


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
    reason: str = ""
    message: str = ""


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

    def pause(self, share: float) -> float:
        """A percentile of the engines' pauses, in seconds."""
        return percentile(self.pauses, share)
