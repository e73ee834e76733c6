"""The world of the trials: two trainer ranks, four engines, traffic, and what can be asked of them."""

import re
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from reference.checkpoint import write_checkpoint
from tools.chaos.cases import Part, Place, Setting
from tools.chaos.holds import Hold
from tools.chaos.ledger import Ledger
from tools.chaos.model import CONFIG, RANKS, weights
from tools.chaos.records import Line, Records, moment
from tools.chaos.traffic import Traffic, until
from tools.cluster import light
from tools.world.cluster import ClusterWorld
from tools.world.network import Network
from tools.world.pod import Pod
from tools.world.processes import ROOT, Child, WorldError, python, wait
from tools.world.world import World
from weightsync.wire.v1 import AgentStatus

ENGINES = 4
STRUCK = "engine-0"  # the engine that has the faults, where it does not matter which
FANOUT = 2
STALL = 2.0
DEADLINE = 10
SMALL_VOLUMES = 64 << 20  # bytes, where volumes are limited
WRITTEN = re.compile(r"^weightsync_agent_written_bytes_total\{.*?\} (\S+)$", re.MULTILINE)
OUTCOME_SECONDS = 50.0


class Site:
    """Use as a context manager."""

    def __init__(self, setting: Setting = Setting.BARRIER) -> None:
        self._stack = ExitStack()
        self.network = self._stack.enter_context(Network()) if setting is Setting.PODS else None
        plan = {
            "strategy": {"deadlineSeconds": DEADLINE, "type": "Rolling" if setting is Setting.ROLLING else "Barrier"},
            "transfer": {"relay": {"fanout": FANOUT if setting is Setting.RELAY else 0}},
        }
        environment = {"WEIGHTSYNC_STALL_SECONDS": str(STALL)}
        self.cluster: ClusterWorld | None = None
        if setting is Setting.CLUSTER:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="weightsync-light-")))
            light_cluster = self._stack.enter_context(light.running(folder / "cluster"))
            self.cluster = ClusterWorld(light_cluster, plan, environment, failpoints=True)
        self.world = self._stack.enter_context(
            self.cluster or World(plan, environment, network=self.network, failpoints=True)
        )
        self.ledger = Ledger()
        self.engines: dict[str, Pod] = {}
        self.struck = STRUCK
        self.sources: list[Pod] = []
        self.ranks: list[Child] = []
        self.model = self.world.folder / "model"
        self._records: dict[Path, Records] = {}
        self._gate = self.world.folder / "gate"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def _start(self) -> None:
        write_checkpoint(self.model, CONFIG, weights(0))
        world = self.world
        limit = SMALL_VOLUMES if self.network is not None else None
        self.sources = [world.trainer(f"trainer-{rank}", volume_bytes=limit) for rank in range(RANKS)]
        for name in (f"engine-{i}" for i in range(ENGINES)):
            self.engines[name] = world.engine(name, self.model, volume_bytes=limit)
        self.ranks = [self._rank(rank, pod) for rank, pod in enumerate(self.sources)]
        self.start_trainer()
        world.wait_for_engines(ENGINES, seconds=120)
        addresses = {name: pod.engine_address for name, pod in self.engines.items()}
        self.traffic = self._stack.enter_context(Traffic(self.ledger, addresses))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank in self.ranks:
            rank.kill()
        self._stack.__exit__(None, None, None)

    def coordinator_first(self) -> list[Pod]:
        """The trainer's pods, the one that coordinates before the other."""
        plan = self.world.plan()
        return sorted(self.sources, key=lambda pod: plan is None or pod.uid != plan.coordinator)

    def aim(self, part: Part) -> None:
        """Choose the engine that the next fault strikes. Raises WorldError where none has that part."""
        tree = self._tree() if part is not Part.ANY else {}
        found = {Part.ANY: [STRUCK], Part.FEEDER: sorted(tree.values()), Part.READER: sorted(tree)}[part]
        if not found:
            raise WorldError(f"there is no {part.value}: in the last sync the sources wrote to all")
        self.struck = found[0]

    def _tree(self) -> dict[str, str]:
        """By engine, the one that fed it in the last sync; without those that the sources wrote to."""
        lines = [line for pod in self.sources for line in self.log(pod.name) if line.get("event") == "relay"]
        tree: dict[str, str | None] = max(lines, key=moment)["tree"] if lines else {}
        names = {key: self.world.name_of(key.partition("/")[0]) for key in tree}
        return {names[key]: names[above] for key, above in tree.items() if above is not None}

    # --- the trainer ---

    def _rank(self, rank: int, pod: Pod) -> Child:
        command = python("tools.chaos.trainer", "--directory", str(pod.volume), "--rank", str(rank))
        log = self.world.folder / f"rank-{rank}.log"
        return Child(f"rank {rank}", command, {"PYTHONPATH": str(ROOT)}, log, listens=True)

    def start_trainer(self) -> None:
        """All ranks begin a new life, as a launcher does where one of them has ended."""
        for rank in self.ranks:
            rank.kill()
        self.ledger.new_life()
        before = [self._ready(rank) for rank in range(RANKS)]
        for rank in self.ranks:
            rank.start()
        for number, rank in enumerate(self.ranks):
            wait(f"rank {number}", lambda n=number: self._ready(n) > before[n], 60, [rank])  # type: ignore[misc]

    def _ready(self, rank: int) -> int:
        return sum(line["event"] == "ready" for line in self._said(rank))

    def _said(self, rank: int) -> list[Line]:
        return self.records(self.world.folder / f"rank-{rank}.log")

    def publish(self, *, gated: bool = False) -> int:
        """Every rank publishes; the publish's number. gated: half of the tensors wait for open_gate()."""
        self._gate.unlink(missing_ok=True)
        number = self.ledger.publish()
        for rank in self.ranks:
            if rank.alive:
                rank.tell(f'{{"publish": {number}, "gate": "{self._gate if gated else ""}"}}')
        return number

    def open_gate(self) -> None:
        """Let the generators go on."""
        self._gate.touch()

    def said(self, event: str, number: int) -> list[Line]:
        """What the ranks have said of a publish."""
        return [
            line
            for rank in range(RANKS)
            for line in self._said(rank)
            if line["event"] == event and line.get("publish") == number
        ]

    def outcome(self, number: int, seconds: float = OUTCOME_SECONDS) -> dict[str, str]:
        """Each engine's outcome, once every living rank was told; what came until then where one is not told.

        At once for a publish of a former life: its ranks are gone, and with them whoever waited for the outcome.
        """
        if not self.ledger.lives(number):
            return self.outcomes(number)
        until(lambda: len(self.said("outcome", number)) >= sum(rank.alive for rank in self.ranks), seconds, 0.02)
        return self.outcomes(number)

    def outcomes(self, number: int) -> dict[str, str]:
        """Each engine's outcome as far as it was told. From now on no current engine may answer from before."""
        found: dict[str, str] = {}
        for line in self.said("outcome", number):
            found.update({self.world.name_of(uid): outcome for uid, outcome in line["engines"].items()})
        for engine, outcome in found.items():
            if outcome == "Current" and engine in self.engines:
                self.traffic.current(engine, number)
        return found

    def why(self, number: int) -> str:
        """What the ranks were told of a publish, in words."""
        return "; ".join(sorted({line["message"] for line in self.said("outcome", number)})) or "no outcome"

    # --- engines ---

    def status(self, pod: Pod, seconds: float = 1.0) -> AgentStatus | None:
        """What the engine's agent says; None where it does not answer in time."""
        try:
            return AgentStatus.model_validate(self.world.call(pod, "/v1/status", seconds=seconds))
        except WorldError:
            return None

    def serving(self, name: str) -> int | None:
        """The publish that the engine is current with, as its agent says; None: not current."""
        status = self.status(self.engines[name])
        if status is None or not status.gate or status.journal != "Current":
            return None
        number = self.ledger.number(status.version)
        if number is not None:
            self.traffic.current(name, number)
            self.traffic.open(name)
        return number

    def all_current(self, number: int, but: str = "") -> bool:
        """Every engine serves that publish."""
        return all(self.serving(name) == number for name in self.engines if name != but)

    # --- figures ---

    def hold(self, place: Place, phase: str, content: str = "") -> Hold:
        """Arm a failpoint of that agent."""
        return self.arm(self.pod(place), f"{place.value}-{phase}", content)

    def pod(self, place: Place) -> str:
        """The name of the pod that has that part now."""
        coordinator, source = self.coordinator_first()
        return {Place.TARGET: self.struck, Place.SOURCE: source.name, Place.COORDINATOR: coordinator.name}[place]

    def arm(self, pod: str, name: str, content: str = "") -> Hold:
        """Arm any failpoint."""
        return Hold(self.world.failpoints(pod), name, content)

    def records(self, path: Path) -> list[Line]:
        """The lines of a log."""
        return self._records.setdefault(path, Records(path)).lines()

    def log(self, pod: str) -> list[Line]:
        """What the pod's agent has said."""
        return self.records(self.world.folder / f"{pod}-agent.log")

    def written(self) -> dict[int, float]:
        """Bytes that each source agent has written in its present life, by process id."""
        found = {}
        for pod in self.sources:
            try:
                with urllib.request.urlopen(f"http://{pod.address}/metrics", timeout=2.0) as answer:
                    text = answer.read().decode()
            except OSError:
                continue
            found[pod.agent.pid] = sum(float(value) for value in WRITTEN.findall(text))
        return found


def sent(before: dict[int, float], after: dict[int, float]) -> int:
    """Bytes written between two readings of written(). Pure."""
    return int(sum(value - before.get(pid, 0.0) for pid, value in after.items()))


def now() -> float:
    """Seconds since 1970, as logs have them."""
    return time.time()
