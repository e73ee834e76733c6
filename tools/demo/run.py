"""The order of the demo: set up, install, apply, watch and act, read back, judge, clean up."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty

from tools.demo import diagnosis, figures, manifests, namespace, readback, site
from tools.demo.errors import DemoError
from tools.demo.kubectl import Helm, Kubectl
from tools.demo.options import Options
from tools.demo.story import Action, Delete, Scale, Story
from tools.demo.table import Display
from tools.demo.watching import Watching, now_ms
from tools.setup import progress

RELEASE = "weightsync"
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
    kubectl = Kubectl(place.kubectl, place.kubeconfig, options.namespace)
    helm = Helm(place.helm, place.kubeconfig, options.namespace, RELEASE)
    story = Story(options.scale_at, options.delete_at)
    with _installed(options, root, place, kubectl, helm):
        try:
            with Watching(place.kubeconfig, options.namespace) as watching, Display(options.steps) as display:
                _apply(options, root, place, kubectl)
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


@contextmanager
def _installed(options: Options, root: Path, place: site.Site, kubectl: Kubectl, helm: Helm) -> Iterator[None]:
    """The chart in a namespace of its own; both are removed at the end, unless they are to be kept."""
    with progress.step("chart") as step:
        namespace.make(kubectl, helm)
        had_crds = namespace.has_crds(kubectl)
        if had_crds and place.local:  # an older clone's, perhaps
            kubectl("apply", "--server-side", "--force-conflicts", "-f", root / "crds")
        image, tag = manifests.split_image(place.image)
        values = [
            f"image.repository={image}",
            f"image.tag={tag}",
            f"operator.watchNamespaces={{{options.namespace}}}",
            f"agent.namespaces={{{options.namespace}}}",
            f"crds.install={str(not had_crds).lower()}",
        ]
        try:
            helm.install(root / "charts" / "weightsync", values)
        except DemoError as error:
            print(diagnosis.describe(kubectl), file=sys.stderr)
            if not options.keep:
                namespace.remove(kubectl, helm, crds=not had_crds)
            raise DemoError(f"the chart cannot be installed: {error}") from error
        step.end(f"installed in namespace {options.namespace}")
    try:
        yield
    except BaseException:
        _end(options, place, kubectl, helm, crds=not had_crds, quiet=True)
        raise
    _end(options, place, kubectl, helm, crds=not had_crds, quiet=False)


def _end(options: Options, place: site.Site, kubectl: Kubectl, helm: Helm, *, crds: bool, quiet: bool) -> None:
    """Clean up, or say what is kept. quiet: another error is on its way, which this one shall not hide."""
    if options.keep:
        print(f"kept: export KUBECONFIG={place.kubeconfig}; kubectl -n {options.namespace} get pods,weightsyncs")
        return
    with progress.step("clean-up") as step:
        try:
            namespace.remove(kubectl, helm, crds=crds)
        except DemoError as error:
            if not quiet:
                raise
            step.end(f"failed: {error}")
        else:
            step.end("namespace and chart removed")


def _apply(options: Options, root: Path, place: site.Site, kubectl: Kubectl) -> None:
    folder = manifests.write(root / "build" / "demo" / "manifests", root, place, options.namespace, options.steps)
    with progress.step("examples") as step:
        kubectl("apply", "-k", folder)
        step.end(f"applied {folder}")


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
