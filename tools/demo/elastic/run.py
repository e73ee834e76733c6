"""The order of it: set up, install, apply, follow the plot, draw and read back, judge, clean up."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from queue import Empty
from typing import Any

from rich.console import Console

from tools.demo import diagnosis, installing, manifests, readback, site
from tools.demo.elastic import figures, picture
from tools.demo.elastic.options import ElasticOptions
from tools.demo.elastic.picture import Arrow
from tools.demo.elastic.plot import Action, KillTrainer, Look, Passed, Plot, Stage
from tools.demo.errors import DemoError
from tools.demo.figures import Readback, Verdict
from tools.demo.kubectl import Kubectl
from tools.demo.story import Scale
from tools.demo.table import Display, cells
from tools.demo.watching import Watching
from weightsync.api.v1alpha1.slice import SliceSpec

READBACK_SECONDS = 120.0  # refused in a sync, and there is one most of the time
# For a stage: images are pulled, torch is imported by six engines at once on however few processors there are.
STAGE_SECONDS = 600.0
SLICE_TRIES = 10  # the operator may write a new head between two looks
WORKLOADS = (("StatefulSet", "trainer", "trainer"), ("Deployment", "rollout", "engine"))

Json = dict[str, Any]


def demo(options: ElasticOptions, root: Path) -> int:
    """Run it all; 0 where every bound is kept, else 1. Raises DemoError, SetupError, ClusterError."""
    chosen = options.demo
    chosen.report.parent.mkdir(parents=True, exist_ok=True)
    chosen.report.unlink(missing_ok=True)  # nobody shall take an older run's for this one's
    place = site.prepare(chosen, root)
    kubectl, helm = installing.programs(place, chosen.namespace)
    patches = [manifests.small(*workload) for workload in WORKLOADS]
    display = Display(chosen.steps, Console(stderr=options.as_json, force_terminal=False))
    with installing.installed(root, place, kubectl, helm, keep=chosen.keep):
        try:
            with Watching(place.kubeconfig, chosen.namespace) as watching:
                folder = root / "build" / "demo" / "elastic"
                installing.apply(folder, root, place, kubectl, chosen.steps, more=patches)
                course = Following(Plot(options.many), kubectl, watching, display, chosen.report.parent)
                course.follow()
        except DemoError as error:
            print(diagnosis.describe(kubectl), file=sys.stderr)
            raise DemoError(f"{error} (above: conditions, events and logs)") from error
        verdicts = figures.judge(course.plot, course.read, course.drawn)
        document = figures.report(course.plot, verdicts, course.read, course.drawn)
    chosen.report.write_text(json.dumps(document, indent=2) + "\n")
    return _end(options, document, verdicts, display)


def _end(options: ElasticOptions, document: Json, verdicts: list[Verdict], display: Display) -> int:
    display.verdicts(verdicts)
    if options.as_json:
        print(json.dumps(document, indent=2))
    else:
        print(f"{options.demo.report}; the mapping is drawn in mapping-*.svg beside it")
    return 0 if all(verdict.kept for verdict in verdicts) else 1


class Following:
    """Feeds the plot with what happens, and does what it asks for. drawn, read: by stage."""

    def __init__(self, plot: Plot, kubectl: Kubectl, watching: Watching, display: Display, folder: Path) -> None:
        self.plot = plot
        self.drawn: dict[Stage, list[Arrow]] = {}
        self.read: dict[Stage, list[Readback]] = {}
        self._kubectl, self._watching, self._display, self._folder = kubectl, watching, display, folder
        self._told = 0

    def follow(self) -> None:
        """Until the plot is over. Raises DemoError where a stage takes too long."""
        began, stage = time.monotonic(), self.plot.stage
        while self.plot.stage is not Stage.OVER:
            try:
                actions = self.plot.take(self._watching.events.get(timeout=0.5))
            except Empty:
                actions = []
            self._tell()
            if self.plot.failure:
                raise DemoError(self.plot.failure)
            for action in actions:
                self._do(action)
            if self.plot.stage is not stage:
                began, stage = time.monotonic(), self.plot.stage
            if time.monotonic() - began > STAGE_SECONDS:
                pods = ", ".join(f"{pod.name} {pod.note}" for pod in self.plot.pods.values() if not pod.gone)
                raise DemoError(f"waited {STAGE_SECONDS:.0f} s until {stage.value}; pods: {pods}")

    def _tell(self) -> None:
        for step in self.plot.steps[self._told :]:
            number, reward, version, engines, sync, pause, checks = cells(step)
            self._display.say(
                f"step {number}  reward {reward}  version {version}  engines {engines}  sync {sync}  pause {pause}  "
                f"{checks}"
            )
        self._told = len(self.plot.steps)

    def _do(self, action: Action) -> None:
        match action:
            case Scale(engines):
                self._display.say(f"the rollout is scaled to {engines} engines")
                self._watching.scale("rollout", engines)
            case KillTrainer():
                self._display.say("the trainer is killed: its pods are deleted without warning")
                words = ("--selector=app=trainer", "--grace-period=0", "--force", "--wait=false")
                self._kubectl("delete", "pods", *words)
            case Look():
                self._look(self.plot.passed[-1])

    def _look(self, passed: Passed) -> None:
        found = self.drawn[passed.stage] = picture.arrows(self._slices())
        self._display.say(f"{passed.stage.value} (version {passed.version}); who writes to whom:")
        for line in picture.text(found):
            self._display.say(f"    {line}")
        path = self._folder / f"mapping-{len(self.plot.passed)}-{passed.stage.name.lower()}.svg"
        path.write_text(picture.svg(f"{len(self.plot.passed)}. {passed.stage.value}", found))
        read = readback.read_all(self._kubectl, passed.engines, None, READBACK_SECONDS)
        self.read[passed.stage] = read
        right = sum(one.digest_ok for one in read)
        self._display.say(f"    {right} of {len(read)} engines hold, byte for byte, the version that they name")

    def _slices(self) -> list[SliceSpec]:
        """Those that the head names, at one moment. Raises DemoError where it never stands still."""
        for _ in range(SLICE_TRIES):
            head = self._kubectl.get("weightsyncs", "policy").get("status", {}).get("head", {})
            found = {one["metadata"]["name"]: one for one in self._kubectl.get("weightsyncslices")["items"]}
            if head and found.keys() >= set(head["slices"]):
                return [SliceSpec.model_validate(found[name]["spec"]) for name in head["slices"]]
        raise DemoError("the head of the WeightSync names slices that are not there: what does the operator say?")
