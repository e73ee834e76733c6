"""One schedule: a world from a seed, its faults, its healing, its end."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from tools.simulate import faults as f
from tools.simulate import invariants as i
from tools.simulate import lures
from tools.simulate.ambush import Ambush, kind_of
from tools.simulate.clock import Future, Life, Loop
from tools.simulate.coverage import COVERAGE
from tools.simulate.ledger import Ledger
from tools.simulate.memory import SIZE, ArenaFile
from tools.simulate.network import CALM, Network
from tools.simulate.planner import Planner
from tools.simulate.pods import EnginePod, SourcePod
from tools.simulate.rank_target import START_WORKER
from tools.simulate.trainer import Rank, Trainer
from tools.simulate.transfer import WIRE, Wires
from tools.simulate.watch import Watch
from weightsync.errors import WeightSyncError
from weightsync.plan import Strategy
from weightsync.wire.v1 import PublishRequest
from weightsync_agent.protocol import engine_leader as leader
from weightsync_agent.protocol.coordinator import COMMIT_SECONDS
from weightsync_agent.protocol.table import Machine

HEAL_SECONDS = 150.0  # of virtual time after the last fault, for everything to be current again
MOST_EVENTS = 60_000
RELAYING = 0.3  # share of schedules in which engines pass versions on
SLOW_READ = 0.2  # seconds of a piece at most, where engines join from those that join
LEASE_SECONDS = 0.6  # there
LATE_COMERS = 0.06  # share of schedules in which engines come once there are versions
LEAVING = 0.4  # share of these in which those that were there before leave
# (stages, ranks of each stage, all in one pod)
TRAINERS = ((1, 1, False), (1, 1, False), (2, 1, False), (1, 2, False), (2, 1, True))


class World:
    """See the module. faults: None draws them from the seed; else exactly these. again: its course is another."""

    def __init__(
        self, seed: int, faults: Sequence[f.Fault] | None = None, strategy: str | None = None, again: int = 0
    ) -> None:
        shape = Random(f"{seed}/shape")  # noqa: S311 - a seed, no secret
        self.ambushes: list[Ambush] = []
        self.faults = list(f.draw(Random(f"{seed}/faults"), 120) if faults is None else faults)  # noqa: S311
        # A moment that only engines of two pods know is waited for where there are such engines; and so on.
        self.aims = [kind_of(fault.pick) for fault in self.faults if fault.kind == f.AMBUSH]
        self.pairs = any(kind.pair for kind in self.aims)
        self.seed, self.loop = seed, Loop()
        self.rng = Random(f"{seed}/run" + f"/{again}" * bool(again))  # noqa: S311
        self.stages, ranks, together = self._trainers(shape.choice(TRAINERS))
        self.pieces = shape.choice((1, 1, 2))
        per_stage = shape.choice((1, 1, 2))
        self.owners = [stage for stage in range(self.stages) for _ in range(per_stage)]
        self.extents = [(0, len(self.owners) * SIZE)]
        self.engine_ranks = max(shape.choice((1, 1, 1, 2)), 1 + self.pairs)
        self.arenas = shape.choice((1, 2, 2))
        self.target_arenas = shape.choice((1, 1, 2))
        itself = any(kind.direct for kind in self.aims) or self.shape_of(-1).random() < 0.25
        self.direct = itself and not self.pairs  # some engines are written to themselves
        self.begin_end = shape.random() < 0.6
        self.interval = shape.choice((0.4, 1.5, 1.5, 3.0, 3.0))
        self.fill_seconds = shape.choice((0.003, 0.003, 0.06))  # for one bucket, at most
        self.disk_seconds = 0.004
        self.stall_seconds = shape.choice((0.6, 1.0))
        self.deadline_seconds = shape.choice((2, 4))
        self.fanout, more = self._relay(Random(f"{seed}/relay"))  # noqa: S311 - apart: a seed means what it meant
        self.probe_seconds, self.tick_seconds = 1.5, 0.5
        self.report = shape.random() < 0.1
        kind = strategy or shape.choice(("Barrier", "Barrier", "Rolling"))
        self.strategy = Strategy.model_validate({
            "type": kind, "deadline_seconds": self.deadline_seconds,
            "pause_mode": shape.choice(("Retract", "Abort", "Abort", "InPlace")),
        })  # fmt: skip
        self.ledger = Ledger(self.loop, self.owners)
        self.network = Network(self.loop, self.rng)
        self.wires = Wires(self.loop, self.rng, self.ledger, self.pieces)
        self.ledger.flying, self.ledger.sessions = self.wires.flying, self.wires.sessions
        self.planner = Planner(self)
        self.watch = Watch(self)
        self.chances: dict[str, float] = {}
        self.dawdles: tuple[int, float] | None = None  # a rank that fills slowly: seconds for each bucket
        self.compare_seconds = 1.0  # of a found arena, at most
        self.start_seconds, self.join_seconds = START_WORKER, WIRE  # of a piece that a joiner reads, at most
        self.kill_seconds = 0.002  # until a worker that is killed has ended
        self.struck, self.sprung = list[str](), list[str]()  # faults; ambushes, each time
        self.faulty = 0
        self.last_fault = 0.0
        self.frozen: list[tuple[float, float]] = []
        self.engine_count = 0
        self.source_pods = self._sources(ranks, together)
        self.trainer = Trainer(self, self._ranks(ranks, together))
        self.engine_pods: list[EnginePod] = []
        self.gone_pods: list[EnginePod] = []
        for _ in range(shape.choice((1, 2, 2, 3)) + more):
            self.add_engine()
        self.loop.at(0.2 if shape.random() < 0.8 else 0.05, self.trainer.start)

    def shape_of(self, engine: int) -> Random:
        """What an engine's mode is drawn from: apart, so that the rest of a seed means what it always meant."""
        return Random(f"{self.seed}/direct/{engine}")  # noqa: S311

    def _trainers(self, drawn: tuple[int, int, bool]) -> tuple[int, int, bool]:
        return (1, 2, False) if any(kind.apart for kind in self.aims) else drawn

    def _relay(self, drawn: Random) -> tuple[int, int]:
        """The fanout, and how many engines more there are for it."""
        aimed = any(kind.relay for kind in self.aims)
        return (drawn.choice((1, 1, 2)), drawn.choice((1, 1, 2))) if drawn.random() < RELAYING or aimed else (0, 0)

    @property
    def joins_together(self) -> bool:
        """Engines that come do so at once, each lends to one at a time, and reads last: some read what others do."""
        return self.comes_late() is not None and bool(self.seed % 2)

    @property
    def lease_seconds(self) -> float:
        """Of a joiner's lease; where it reads slowly it asks for it several times."""
        return LEASE_SECONDS if self.joins_together else 2 * self.stall_seconds

    def comes_late(self) -> Random | None:
        """What engines that come once there are versions are drawn from; None where nobody does. Apart, too."""
        comers = Random(f"{self.seed}/comers")  # noqa: S311
        return comers if comers.random() < LATE_COMERS else None

    def _comers(self) -> None:
        """Engines come while the trainer publishes, pauses, or is away, and those that were there may leave then."""
        comers = self.comes_late()
        if comers is None:
            return
        at, lasts = 1.0 + 4.0 * comers.random(), 3.0 + 2.0 * comers.random()
        self.faulty += 1  # the schedule lasts until then
        self.loop.at(at + lasts, self._came)
        how = comers.random()
        if how < 0.4:
            self.loop.at(at, self.trainer.rest, lasts)
        elif how < 0.7:
            self.loop.at(at, lures.trainers_away, self, lasts)
        apart, more = 1.0, 0
        if self.joins_together:
            apart, more, self.join_seconds = 0.05, 3, SLOW_READ
        for _ in range(comers.choice((1, 1, 2, 3)) + more):
            self.loop.at(at + 0.1 + apart * comers.random(), self.add_engine)
        if comers.random() < LEAVING:
            self.loop.at(at + 0.5 * lasts, self._leave, self.engine_count)
            self.loop.at(at + (0.5 + 0.3 * comers.random()) * lasts, self.add_engine)

    def _leave(self, old: int) -> None:
        """As in a rolling update: those that came stay, and whoever comes now can read from these alone."""
        for pod in self.engine_pods[:]:
            if pod.number < old and len(self.engine_pods) > 1:
                self.remove_engine(pod)

    def _came(self) -> None:
        self.faulty -= 1
        self.join_seconds = WIRE
        self.last_fault = self.loop.now

    @property
    def layouts(self) -> int:
        """Its engines are of so many parallelisms; where they relay, more often of one."""
        if self.fanout and self.seed % 3:
            return 1
        return Random(f"{self.seed}/layouts").choice((1, 2, 3))  # noqa: S311

    def _sources(self, ranks: int, together: bool) -> list[SourcePod]:
        return [SourcePod(self, number) for number in range(1 if together else self.stages * ranks)]

    def _ranks(self, ranks: int, together: bool) -> list[Rank]:
        found = []
        for number in range(self.stages * ranks):
            pod = self.source_pods[0 if together else number]
            rank = Rank(number, pod, number % self.stages)
            self.ledger.stages[f"{pod.uid}/{number}"] = rank.stage
            found.append(rank)
        return found

    # --- what drivers ask for ---

    def handle(self, who: str, machine: Machine[Any], event: object) -> list[object]:
        """The machine takes an event. That it cannot is a violation."""
        self.loop.note(who, type(event).__name__, event)
        try:
            actions = machine.handle(event, self.loop.now)
        except WeightSyncError as error:
            raise i.Violation(0, str(error)[:600]) from error
        for each in self.ambushes:
            each.after(machine)
        return actions

    def nonce(self, digits: int) -> str:
        """A fresh name."""
        return f"{self.rng.getrandbits(4 * digits):0{digits}x}"

    def future(self) -> Future:
        """One more."""
        return Future(self.loop)

    def arena(self, name: str, rank: int) -> ArenaFile:
        """A new Empty arena file for an engine's rank, counted over all layouts."""
        return ArenaFile(name, self.layout(rank), self.program(rank), len(self.owners), self.pieces)

    @staticmethod
    def program(rank: int) -> str:
        """Of an engine's rank, counted over all layouts."""
        return f"{0xA0 + rank:08x}{'0' * 24}"

    @staticmethod
    def layout(rank: int) -> str:
        """Of an engine's rank, counted over all layouts."""
        return f"{0xB0 + rank:08x}{'0' * 24}"

    def owned(self, stage: int) -> list[int]:
        """The buckets that a stage owns."""
        return [bucket for bucket, owner in enumerate(self.owners) if owner == stage]

    def step_of(self, request: PublishRequest) -> int:
        """What training step a rank's publish is really of."""
        rank = self.trainer.ranks[request.writer.rank]
        return rank.steps[request.nonce, request.sequence]

    def fault_chance(self, name: str) -> bool:
        """Whether this one fails."""
        chance = self.chances.get(name)
        return chance is not None and self.rng.random() < chance

    def freeze(self, life: Life, seconds: float) -> None:
        """SIGSTOP, then SIGCONT."""
        life.frozen_until = max(life.frozen_until, self.loop.now + seconds)
        self.frozen.append((self.loop.now, self.loop.now + seconds))

    def slept(self, since: float) -> bool:
        """Whether a process was stopped since then: its own deadlines do not hold."""
        return any(end >= since for _, end in self.frozen)

    def rotate(self, fault: f.Fault) -> None:
        """There is one source only: its agent dies, and comes back in a new term at the earliest."""
        f.KINDS["source agent dies"](self, fault)

    def begun(self, rank: Rank, sequence: int, waited: float) -> None:
        """A rank has its arenas after so many seconds."""
        if self.arenas == 2 and not self.slept(self.loop.now - waited):
            limit = 3 * (self.deadline_seconds + COMMIT_SECONDS + 2 * self.stall_seconds)
            i.copied_alone(f"rank {rank.number}, publish {sequence}", waited, limit)

    # --- engines come and go ---

    def add_engine(self, address: str = "") -> None:
        """A new pod; with an address: at that of one that was."""
        number = self.engine_count
        self.engine_count += 1
        self.engine_pods.append(EnginePod(self, number, address or f"e{number}:1", self.engine_ranks))

    def remove_engine(self, pod: EnginePod) -> None:
        """Its pod is deleted."""
        if pod in self.engine_pods:
            self.engine_pods.remove(pod)
            self.gone_pods.append(pod)
            pod.remove()

    # --- the schedule ---

    def run(self) -> None:
        """To the end: faults, healing, everything current. Raises Violation."""
        loop, faults = self.loop, list(self.faults)
        self._comers()
        first = 0
        heal_by: float | None = None
        asked_at = 0.0
        while True:
            if not loop.step():
                raise i.Violation(15, "nothing happens any more")
            if faults and loop.events >= faults[0].at:
                f.strike(self, faults.pop(0))
                loop.drain()
            if faults or self.faulty or loop.now < asked_at:
                continue
            asked_at = loop.now + 0.2
            if heal_by is None:
                heal_by = loop.now + HEAL_SECONDS
                self._calm()
                first = self.trainer.step
                self.last_fault = loop.now
            lacks = self._lacks(first)
            if not lacks:
                break
            if loop.now > heal_by or loop.events > MOST_EVENTS:
                i.healed(lacks, loop.now - self.last_fault)
        COVERAGE.schedule(self)

    def _calm(self) -> None:
        self.network.weather = CALM
        self.network.cut.clear()
        self.chances.clear()
        self.ambushes.clear()
        for pod in self.source_pods:
            pod.deaf_until = 0.0
            self.loop.at(0.1, pod.planned)

    def _lacks(self, first: int) -> list[str]:
        """What is not healed yet: every live engine current with what was published since, none paused."""
        lacks = []
        newest = self.trainer.copied_step
        if not self.engine_pods:
            self.add_engine()
        if newest <= first:
            return ["the trainer has not published since"]
        for pod in self.engine_pods:
            engine = pod.engine
            if not engine.alive:
                lacks.append(f"{pod.name} is not alive")
            elif engine.paused:
                lacks.append(f"{pod.name} is paused ({pod.agent.machine.state.name})")
            else:
                step = engine.memory[0][0][0]
                if step < newest - 1 or step <= first:
                    lacks.append(f"{pod.name} serves step {step} of {newest}")
                elif pod.agent.machine.state is not leader.LeaderState.CURRENT or not pod.agent.gate:
                    lacks.append(f"{pod.name} is {pod.agent.machine.state.name}, its gate {pod.agent.gate}")
        return lacks
