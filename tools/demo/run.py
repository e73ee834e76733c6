"""The order of the demo: set up, install, apply, watch and act, read back, judge, clean up."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from queue import Empty

from tools.demo import diagnosis, figures, installing, readback, site
from tools.demo.errors import DemoError
from tools.demo.options import Options
from tools.demo.story import Action, Delete, Scale, Story
from tools.demo.table import Display
from tools.demo.watching import Watching, now_ms

START_SECONDS = 300.0  # from the first pod to the first step: images are pulled, torch is imported
STUCK_SECONDS = 60.0  # for a container that cannot be started: a registry may be slow once
STEP_SECONDS = 240.0  # without a word of the trainer
SETTLE_SECONDS = 120.0  # for the last engines to become current after the last step
READBACK_SECONDS = 60.0
GRACE_SECONDS = 1  # for the engine that is deleted in the middle of a sync


def demo(options: Options, root: Path) -> int:
    """Run it all; 0 where every bound is kept, else 1. Raises DemoError, SetupError, ClusterError."""
    began = time.monotonic()
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.unlink(missing_ok=True)  # nobody shall take an older run's for this one's
    place = site.prepare(options, root)
    kubectl, helm = installing.programs(place, options.namespace)
    story = Story(options.scale_at, options.delete_at)
    with installing.installed(root, place, kubectl, helm, keep=options.keep):
        try:
            with Watching(place.kubeconfig, options.namespace) as watching, Display(options.steps) as display:
                folder = root / "build" / "demo" / "manifests"
                installing.apply(folder, root, place, kubectl, options.steps)
                _follow(story, watching, display)
                last = story.steps[-1]["version"]
                engines = sorted(pod.name for pod in story.engines)
                display.show(story, "the engines' weights are read back")
                found = readback.read_all(kubectl, engines, last, READBACK_SECONDS)
        except DemoError as error:
            print(diagnosis.describe(kubectl), file=sys.stderr)
            raise DemoError(f"{error} (above: conditions, events and logs)") from error
        finally:
            lines = "".join(json.dumps(document) + "\n" for document in story.heard)
            options.report.with_name("trainer.jsonl").write_text(lines)
        document = figures.report(story, found, one_clock=place.local)
        options.report.write_text(json.dumps(document, indent=2) + "\n")
        verdicts = figures.judge(document, last)
        display.verdicts(verdicts)
    broken = [verdict.name for verdict in verdicts if not verdict.kept]
    seconds = time.monotonic() - began
    print(f"{options.report}; {seconds:.0f} s in all; " + (f"broken: {', '.join(broken)}" if broken else "all kept"))
    return 1 if broken else 0


def _follow(story: Story, watching: Watching, display: Display) -> None:
    """Until training is over and every engine is current. Raises DemoError where nothing moves any more."""
    heard = time.monotonic()
    steps = 0
    while not story.settled:
        try:
            actions = story.take(watching.events.get(timeout=0.5))
        except Empty:
            actions = []
        for action in actions:
            _do(action, watching)
        failure = story.failure or story.stuck(now_ms(), STUCK_SECONDS)
        if failure:
            raise DemoError(failure)
        if len(story.steps) > steps:
            steps, heard = len(story.steps), time.monotonic()
        doing, seconds = _waiting_for(story)
        display.show(story, doing)
        if time.monotonic() - heard > seconds:
            raise DemoError(f"nothing happened for {seconds:.0f} s while waiting: {doing}")


def _waiting_for(story: Story) -> tuple[str, float]:
    if story.summary is not None:
        return f"training is over; {len(story.open_gates)} engines are current", SETTLE_SECONDS
    if story.steps:
        return f"step {len(story.steps) + 1} is under way", STEP_SECONDS
    notes = ", ".join(f"{pod.name} {pod.note}" for pod in story.pods.values()) or "no pod yet"
    return f"for the first step: {notes}", START_SECONDS


def _do(action: Action, watching: Watching) -> None:
    match action:
        case Scale(engines):
            watching.scale("rollout", engines)
        case Delete(pod):
            watching.delete(pod, GRACE_SECONDS)
