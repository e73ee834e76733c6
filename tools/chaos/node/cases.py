"""Which faults are tried on the node. Pure."""

from dataclasses import dataclass
from enum import Enum

STOP_SECONDS = 12.0  # longer than a stall timeout and the lease of the operator's watch


class Part(Enum):
    """What is struck; the value names it for people. An engine is the first by name, a source does not coordinate."""

    ENGINE = "an engine"
    ENGINE_AGENT = "an engine's agent"
    ENGINE_WORKER = "an engine's transfer worker"
    ENGINE_POD = "an engine's pod"
    SOURCE_AGENT = "a source's agent"
    SOURCE_WORKER = "a source's transfer worker"
    COORDINATOR = "the coordinator's agent"
    TRAINER = "a trainer's rank"
    OPERATOR = "the operator"
    API_SERVER = "the API server"
    KUBELET = "the kubelet"

    @property
    def of_engine(self) -> bool:
        """It belongs to one engine: the others are served by the struck sync all the same."""
        return self in (Part.ENGINE, Part.ENGINE_AGENT, Part.ENGINE_WORKER, Part.ENGINE_POD)

    @property
    def beside_the_data(self) -> bool:
        """No byte passes through it: every engine is served by the struck sync."""
        return self in (Part.OPERATOR, Part.API_SERVER, Part.KUBELET)


class How(Enum):
    """What is done to it."""

    KILL = "is killed"
    STOP = f"is stopped for {STOP_SECONDS:.0f} s"
    DELETE = "is deleted with no grace"


@dataclass(frozen=True)
class NodeCase:
    """One fault, in the sync that begins next."""

    part: Part
    how: How

    @property
    def id(self) -> str:
        """A sentence."""
        return f"{self.part.value} {self.how.value} in a sync"


def table() -> list[NodeCase]:
    """All, in the order in which they run: what kubelet starts again waits longer from time to time."""
    kill, stop = How.KILL, How.STOP
    return [
        NodeCase(Part.ENGINE_WORKER, kill),
        NodeCase(Part.ENGINE_AGENT, kill),
        NodeCase(Part.ENGINE_AGENT, stop),
        NodeCase(Part.ENGINE_POD, How.DELETE),
        NodeCase(Part.SOURCE_WORKER, kill),
        NodeCase(Part.SOURCE_AGENT, stop),
        NodeCase(Part.SOURCE_AGENT, kill),
        NodeCase(Part.ENGINE, stop),
        NodeCase(Part.ENGINE, kill),
        NodeCase(Part.OPERATOR, kill),
        NodeCase(Part.OPERATOR, How.DELETE),
        NodeCase(Part.API_SERVER, stop),
        NodeCase(Part.KUBELET, stop),
        NodeCase(Part.COORDINATOR, kill),
        NodeCase(Part.TRAINER, kill),
    ]
