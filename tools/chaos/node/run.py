"""The order of the trials on the node: install, let a trainer publish, strike, read back, judge, clean up."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from rich.console import Console
from rich.table import Table

from tools.chaos.concluding import conclude
from tools.chaos.node import cases, judging
from tools.chaos.node.cases import How, NodeCase
from tools.chaos.node.course import Arm, Course, NodeTrial, Strike
from tools.chaos.node.striking import Aim, aim, started_ms
from tools.cluster.errors import ClusterError
from tools.demo import diagnosis, installing, readback, site
from tools.demo.errors import DemoError
from tools.demo.figures import Readback
from tools.demo.kubectl import Kubectl
from tools.demo.options import Options
from tools.demo.story import TrainerSaid
from tools.demo.watching import Watching, now_ms
from tools.report.writing import BUILD, write
from tools.setup.errors import SetupError

NAMESPACE = "weightsync-chaos"
ENGINES = 4
FOR_EVER = 1_000_000  # steps: the trainer goes on until it is removed
PATIENCE_SECONDS = 120.0  # for one heal: what takes so long is not mended by waiting
READBACK_SECONDS = 90.0  # refused in a sync, and there is one most of the time
SILENCE_SECONDS = 300.0  # without a step: images are pulled, torch is imported, an API server is stopped


def run(only: str, root: Path) -> int:
    """Exit status: 0 where every bound holds, 1 where one is broken or the trials cannot go on, 2: no case chosen."""
    chosen = [case for case in cases.table() if only in case.id]
    if not chosen:
        sys.stderr.write(f"no case's id holds {only!r}; --list prints them\n")
        return 2
    options = Options(
        kubeconfig=None, image_prefix="", image_tag="", namespace=NAMESPACE, steps=FOR_EVER, keep=False,
        report=BUILD / "chaos" / "node.json",
    )  # fmt: skip
    try:
        course, read = _trials(chosen, options, root)
    except (DemoError, SetupError, ClusterError) as error:
        sys.stderr.write(f"chaos: {error}\n")
        return 1
    Console(width=180).print(table(course.trials))
    found = judging.measures(course.trials, course.clean_seconds, course.lives, read)
    path = write("chaos", "node", found, conditions={"stopSeconds": cases.STOP_SECONDS})
    path.with_name("node-cases.json").write_text(json.dumps(judging.details(course.trials), indent=1) + "\n")
    return conclude(found, path)


def _trials(chosen: Sequence[NodeCase], options: Options, root: Path) -> tuple[Course, list[Readback]]:
    place = site.prepare(options, root)
    kubectl, helm = installing.programs(place, options.namespace)
    course = Course(chosen, ENGINES, PATIENCE_SECONDS)
    with installing.installed(root, place, kubectl, helm):
        try:
            with Watching(place.kubeconfig, options.namespace) as watching:
                installing.apply(BUILD / "chaos" / "manifests", root, place, kubectl, options.steps)
                watching.scale("rollout", ENGINES)
                Following(course, kubectl, watching).follow()
            return course, _read(kubectl)
        except (DemoError, ClusterError):
            print(diagnosis.describe(kubectl), file=sys.stderr)
            raise


class Following:
    """Feeds the course with what the trainer says, and carries out what it asks for."""

    def __init__(self, course: Course, kubectl: Kubectl, watching: Watching) -> None:
        self._course, self._kubectl, self._watching = course, kubectl, watching
        self._aim: Aim | None = None
        self._freed: SimpleQueue[int] = SimpleQueue()  # by timers, in threads of their own
        self._told = 0

    def follow(self) -> None:
        """Until every case is over. Raises DemoError where the trainer says nothing any more."""
        heard = time.monotonic()
        while not self._course.over:
            try:
                event = self._watching.events.get(timeout=0.2)
            except Empty:
                event = None
            while not self._freed.empty():
                self._course.freed(self._freed.get())
            if isinstance(event, TrainerSaid):
                heard = time.monotonic()
                for action in self._course.said(event.document):
                    self._do(action)
            self._course.tick(now_ms())
            self._tell()
            if time.monotonic() - heard > SILENCE_SECONDS:
                raise DemoError(f"the trainer said nothing for {SILENCE_SECONDS:.0f} s: {self._course.doing}")

    def _do(self, action: Arm | Strike) -> None:
        match action:
            case Arm(case):
                self._aim = aim(case, self._kubectl, lambda: self._freed.put(now_ms()))
            case Strike():
                if self._aim is None:
                    raise DemoError(f"{action.case.id}: nothing was aimed at")
                self._aim.strike()
                self._course.struck(self._aim.pod, now_ms())

    def _tell(self) -> None:
        """A line for each case that is over; its victim's new life is looked up first."""
        trials = self._course.trials
        while self._told < len(trials) and (trials[self._told].healed_ms or trials[self._told].problem):
            trial = trials[self._told]
            self._told += 1
            if self._aim is not None and self._aim.container and trial.case.how is How.KILL:
                pod = self._kubectl.get("pods", self._aim.pod)
                self._course.freed(started_ms(pod, self._aim.container))
            verdict = judging.wrong(trial) or "ok"
            print(f"[{self._told}] {trial.case.id}: {verdict}; healed in {trial.heal_seconds:.1f} s", flush=True)


def _read(kubectl: Kubectl) -> list[Readback]:
    """Every engine's parameters against the version that it names; the trainer goes on meanwhile."""
    pods = kubectl.get("pods", "--selector=app=rollout")["items"]
    return readback.read_all(kubectl, [pod["metadata"]["name"] for pod in pods], None, READBACK_SECONDS)


def table(trials: Sequence[NodeTrial]) -> Table:
    """One row for each case."""
    made = Table("case", "", "struck", "heal s", "struck sync s", "its outcomes", highlight=False)
    for trial in trials:
        verdict = judging.wrong(trial)
        made.add_row(
            trial.case.id,
            f"[bold red]FAILED[/] {verdict}" if verdict else "ok",
            trial.victim,
            f"{trial.heal_seconds:.1f}",
            f"{trial.sync_seconds:.2f}",
            ", ".join(sorted(trial.outcomes.values())),
        )
    return made
