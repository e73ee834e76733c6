"""Which faults are tried: one table, each row with an id that reads as a sentence. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product


class Victim(Enum):
    """What is struck. The engine is one of four; the source is the trainer's other pod, which does not coordinate."""

    TARGET_AGENT = "the engine's agent"
    TARGET_WORKER = "the engine's transfer worker"
    ENGINE = "the engine"
    SOURCE_AGENT = "a source's agent"
    SOURCE_WORKER = "a source's transfer worker"
    COORDINATOR = "the coordinator's agent"
    TRAINER = "a trainer's rank"
    OPERATOR = "the operator"
    API_SERVER = "the API server"

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
    RELAYING = "while it reads from another engine"


class Place(Enum):
    """Which agent is held, so that the fault meets the phase: the role in its failpoints' names."""

    TARGET = "target"
    SOURCE = "source"
    COORDINATOR = "coordinator"


class Setting(Enum):
    """The world that a case needs; value: for the report."""

    BARRIER = "Barrier"
    ROLLING = "Rolling"
    RELAY = "engines pass it on to engines"  # in the others the sources write to every engine
    PODS = "pods with a network of their own"  # and volumes of a limited size; as root
    CLUSTER = "planned by an operator"  # on a real API server, without a node


class Part(Enum):
    """What the struck engine is in the tree by which engines pass a version on, where that matters."""

    ANY = "the engine"
    FEEDER = "an engine that feeds another"
    READER = "an engine that reads from another"


class Scenario(Enum):
    """How a case runs: running.py for a process, else the function of that name in scenarios.py."""

    PROCESS = "process"
    CUT = "cut"
    FULL_VOLUME = "full_volume"
    SMALL_VOLUME = "small_volume"
    LATE_WRITE = "late_write"
    LATE_WRITE_UNSEEN = "late_write_unseen"
    CORRUPT = "corrupt"
    REPLACED = "replaced"
    COPIED = "copied"
    CONTROL_PLANE = "control_plane"
    RESTART_ALONE = "restart_alone"


@dataclass(frozen=True)
class Case:
    """One trial. others_unhurt: the engines beside the struck one become current with the struck publish."""

    id: str
    scenario: Scenario = Scenario.PROCESS
    setting: Setting = Setting.BARRIER
    victim: Victim | None = None
    kind: Kind = Kind.KILL
    phase: Phase | None = None
    place: Place = Place.TARGET
    between: tuple[Place, ...] = ()  # whose pods are cut from one another
    wire_free: bool = False  # the heal may send no byte
    others_unhurt: bool = True
    part: Part = Part.ANY

    @property
    def of_engine(self) -> bool:
        """One engine has the fault: it heals without another publish, and the others must not notice."""
        return self.others_unhurt


ALL = tuple(phase for phase in Phase if phase is not Phase.RELAYING)
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


def _wire_free(victim: Victim, phase: Phase) -> bool:
    """The version lies sealed beside the engine: its next agent has all that it needs."""
    return victim is Victim.TARGET_AGENT and phase in (Phase.APPLYING, Phase.COMMITTED)


def processes() -> Iterator[Case]:
    """Every process, killed and stopped, at every phase that makes sense."""
    for victim, places in PLACES.items():
        for kind in Kind:
            for phase, place in places.items():
                if kind is Kind.STOP_KILL and phase not in FOR_GOOD:
                    continue
                yield Case(
                    id=f"{victim.value} is {kind.value} {phase.value}",
                    victim=victim,
                    kind=kind,
                    phase=phase,
                    place=place,
                    wire_free=_wire_free(victim, phase),
                    others_unhurt=victim.of_engine,
                )


def rolling() -> Iterator[Case]:
    """What the other strategy must stand as well."""
    for victim in (Victim.TARGET_AGENT, Victim.ENGINE):
        for kind, phase in (
            (Kind.KILL, Phase.WRITING),
            (Kind.KILL, Phase.APPLYING),
            (Kind.STOP, Phase.WRITING),
            (Kind.STOP, Phase.APPLYING),
        ):
            yield Case(
                id=f"rolling: {victim.value} is {kind.value} {phase.value}",
                setting=Setting.ROLLING,
                victim=victim,
                kind=kind,
                phase=phase,
                wire_free=_wire_free(victim, phase),
            )
    yield Case("rolling: one of four engines is stopped for many publishes", Scenario.COPIED, Setting.ROLLING)


def specials() -> Iterator[Case]:
    """Faults that are no signal, in the usual world."""
    yield Case("a bucket is corrupted after it landed", Scenario.CORRUPT)
    yield Case("a source writes late, and its agent ends its worker", Scenario.LATE_WRITE)
    yield Case("a source writes late, after its agent was stopped", Scenario.LATE_WRITE_UNSEEN, others_unhurt=False)
    yield Case("an engine's pod is replaced at the same address while nothing is published", Scenario.REPLACED)
    yield Case(
        "an engine's pod is replaced at the same address while buckets are written",
        Scenario.REPLACED,
        phase=Phase.WRITING,
    )
    yield Case("one of four engines is stopped for many publishes", Scenario.COPIED)


def relay() -> Iterator[Case]:
    """Whoever feeds others, or reads from another, is struck: those below it read on from somebody else."""
    feeder = (Phase.WRITING, Phase.VERIFIED, Phase.DECIDED, Phase.APPLYING)
    for part, phases in ((Part.FEEDER, feeder), (Part.READER, (Phase.RELAYING, Phase.DECIDED, Phase.APPLYING))):
        # Later phases of worker and engine are as in the world without a relay.
        first = [(victim, phases[:1]) for victim in (Victim.TARGET_WORKER, Victim.ENGINE)]
        for victim, chosen in [(Victim.TARGET_AGENT, phases), *first]:
            for kind, phase in product((Kind.KILL, Kind.STOP), chosen):
                yield Case(
                    id=f"relay: {victim.value} is {kind.value} {phase.value}, of {part.value}",
                    setting=Setting.RELAY,
                    victim=victim,
                    kind=kind,
                    phase=phase,
                    wire_free=_wire_free(victim, phase),
                    part=part,
                )
    yield Case("relay: one of four engines is stopped for many publishes", Scenario.COPIED, Setting.RELAY)


ENGINE_WIRES: tuple[tuple[str, tuple[Place, ...]], ...] = (
    ("an engine and a source", (Place.TARGET, Place.SOURCE)),
    ("an engine and the coordinator", (Place.TARGET, Place.COORDINATOR)),
)


def pods() -> Iterator[Case]:
    """Faults of the network between pods, and of their volumes."""
    for name, between in ENGINE_WIRES:
        for phase in (Phase.HANDSHAKE, Phase.WRITING, Phase.DECIDED, Phase.COMMITTED):
            yield Case(
                f"the network between {name} is cut {phase.value}",
                Scenario.CUT,
                Setting.PODS,
                phase=phase,
                place=Place.TARGET,
                between=between,
            )
    for phase in (Phase.HANDSHAKE, Phase.WRITING, Phase.VERIFIED):
        yield Case(
            f"the network between two sources is cut {phase.value}",
            Scenario.CUT,
            Setting.PODS,
            phase=phase,
            place=Place.SOURCE,
            between=(Place.SOURCE, Place.COORDINATOR),
            others_unhurt=False,
        )
    full = (("an engine's", Place.TARGET), ("a source's", Place.SOURCE), ("the coordinator's", Place.COORDINATOR))
    for name, place in full:
        yield Case(
            f"{name} memory volume is full",
            Scenario.FULL_VOLUME,
            Setting.PODS,
            place=place,
            others_unhurt=place is Place.TARGET,
        )
    yield Case("a joining engine's memory volume is too small", Scenario.SMALL_VOLUME, Setting.PODS)


def control_plane() -> Iterator[Case]:
    """Operator and API server: a sync needs neither."""
    for victim, kinds in ((Victim.OPERATOR, (Kind.KILL,)), (Victim.API_SERVER, (Kind.KILL, Kind.STOP))):
        for kind in kinds:
            for phase, place in (
                (Phase.HANDSHAKE, Place.COORDINATOR),
                (Phase.WRITING, Place.TARGET),
                (Phase.DECIDED, Place.COORDINATOR),
                (Phase.APPLYING, Place.TARGET),
            ):
                yield Case(
                    f"{victim.value} is {kind.value} {phase.value}",
                    Scenario.CONTROL_PLANE,
                    Setting.CLUSTER,
                    victim,
                    kind,
                    phase,
                    place,
                )
    for phase in (Phase.APPLYING, Phase.COMMITTED):
        yield Case(
            f"the engine's agent is killed {phase.value}, and the API server is not there for its restart",
            Scenario.RESTART_ALONE,
            Setting.CLUSTER,
            Victim.TARGET_AGENT,
            Kind.KILL,
            phase,
            wire_free=True,
        )


def table() -> list[Case]:
    """All, in the order in which they run: those that share a world stand together."""
    return [*processes(), *specials(), *rolling(), *relay(), *pods(), *control_plane()]
