"""Which faults are tried: one table, each row with an id that reads as a sentence. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Victim(Enum):
    """What is struck. The engine is one of four; the source is the trainer's other pod, which does not coordinate."""

    TARGET_AGENT = "the engine's agent"
    TARGET_WORKER = "the engine's transfer worker"
    ENGINE = "the engine"
    SOURCE_AGENT = "a source's agent"
    SOURCE_WORKER = "a source's transfer worker"
    COORDINATOR = "the coordinator's agent"
    TRAINER = "a trainer's rank"

    @property
    def of_engine(self) -> bool:
        """It belongs to one engine: the others must not notice."""
        return self in (Victim.TARGET_AGENT, Victim.TARGET_WORKER, Victim.ENGINE)


class Kind(Enum):
    """How."""

    KILL = "killed"
    STOP = "stopped for longer than a stall"
    STOP_KILL = "stopped for a whole sync, then killed"


class Phase(Enum):
    """Where the sync stands when it strikes."""

    HANDSHAKE = "at the handshake"
    WRITING = "while buckets are written"
    VERIFIED = "when all is verified"
    DECIDED = "when the version is decided"
    APPLYING = "when the engine is to apply"
    COMMITTED = "when the engine has committed"


class Place(Enum):
    """Which agent is held, so that the fault meets the phase: the role in its failpoints' names."""

    TARGET = "target"
    SOURCE = "source"
    COORDINATOR = "coordinator"


@dataclass(frozen=True)
class Case:
    """One trial. scenario: how it runs (running.py, scenarios.py)."""

    id: str
    scenario: str = "process"
    victim: Victim | None = None
    kind: Kind = Kind.KILL
    phase: Phase = Phase.WRITING
    place: Place = Place.TARGET
    wire_free: bool = False  # the heal may send no byte
    network: bool = False  # needs pods with network namespaces
    others_unhurt: bool = True  # the other engines become current with the struck publish


ALL = tuple(Phase)
# Stopped for good is the same trial as stopped for a while until somebody kills it: three phases are enough.
FOR_GOOD = (Phase.WRITING, Phase.DECIDED, Phase.APPLYING)

# Where to hold whom, by victim and phase. A phase that is missing makes no sense for the victim.
PLACES: dict[Victim, dict[Phase, Place]] = {
    Victim.TARGET_AGENT: dict.fromkeys(ALL, Place.TARGET),
    Victim.TARGET_WORKER: dict.fromkeys(ALL[:4], Place.TARGET),
    Victim.ENGINE: dict.fromkeys(ALL, Place.TARGET),
    Victim.SOURCE_AGENT: {
        Phase.HANDSHAKE: Place.SOURCE,
        Phase.WRITING: Place.SOURCE,
        Phase.VERIFIED: Place.SOURCE,
        Phase.DECIDED: Place.COORDINATOR,
        Phase.APPLYING: Place.TARGET,
        Phase.COMMITTED: Place.COORDINATOR,
    },
    Victim.SOURCE_WORKER: dict.fromkeys(ALL[:3], Place.SOURCE),
    Victim.COORDINATOR: {
        Phase.HANDSHAKE: Place.COORDINATOR,
        Phase.WRITING: Place.TARGET,
        Phase.VERIFIED: Place.COORDINATOR,
        Phase.DECIDED: Place.COORDINATOR,
        Phase.APPLYING: Place.TARGET,
        Phase.COMMITTED: Place.COORDINATOR,
    },
    Victim.TRAINER: {
        Phase.HANDSHAKE: Place.COORDINATOR,
        Phase.WRITING: Place.SOURCE,
        Phase.VERIFIED: Place.SOURCE,
        Phase.COMMITTED: Place.COORDINATOR,
    },
}


def processes() -> Iterator[Case]:
    """Every process, killed and stopped, at every phase that makes sense."""
    for victim, places in PLACES.items():
        for kind in Kind:
            for phase, place in places.items():
                if kind is Kind.STOP_KILL and phase not in FOR_GOOD:
                    continue
                wire_free = victim is Victim.TARGET_AGENT and phase in (Phase.APPLYING, Phase.COMMITTED)
                yield Case(
                    id=f"{victim.value} is {kind.value} {phase.value}",
                    victim=victim,
                    kind=kind,
                    phase=phase,
                    place=place,
                    wire_free=wire_free,
                    others_unhurt=victim.of_engine,
                )


def table() -> list[Case]:
    """All, in the order in which they run: those that share a world stand together."""
    return list(processes())
