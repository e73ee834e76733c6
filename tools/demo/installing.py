"""The chart and the examples in a namespace of their own, and their removal. Trials on the node use it, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.demo import diagnosis, manifests, namespace, site
from tools.demo.errors import DemoError
from tools.demo.kubectl import Helm, Kubectl
from tools.setup import progress

RELEASE = "weightsync"


def programs(place: site.Site, name: str) -> tuple[Kubectl, Helm]:
    """kubectl and helm, aimed at that namespace."""
    return Kubectl(place.kubectl, place.kubeconfig, name), Helm(place.helm, place.kubeconfig, name, RELEASE)


@contextmanager
def installed(root: Path, place: site.Site, kubectl: Kubectl, helm: Helm, *, keep: bool = False) -> Iterator[None]:
    """The chart in kubectl's namespace; both are removed at the end, unless they are to be kept. Raises DemoError."""
    with progress.step("chart") as step:
        namespace.make(kubectl, helm)
        had_crds = namespace.has_crds(kubectl)
        if had_crds and place.local:  # an older clone's, perhaps
            kubectl("apply", "--server-side", "--force-conflicts", "-f", root / "crds")
        image, tag = manifests.split_image(place.image)
        values = [
            f"image.repository={image}",
            f"image.tag={tag}",
            "operator.replicas=1",  # a trial that strikes the operator strikes the one that works
            f"operator.watchNamespaces={{{kubectl.namespace}}}",
            f"agent.namespaces={{{kubectl.namespace}}}",
            f"crds.install={str(not had_crds).lower()}",
        ]
        try:
            helm.install(root / "charts" / "weightsync", values)
        except DemoError as error:
            print(diagnosis.describe(kubectl), file=sys.stderr)
            if not keep:
                namespace.remove(kubectl, helm, crds=not had_crds)
            raise DemoError(f"the chart cannot be installed: {error}") from error
        step.end(f"installed in namespace {kubectl.namespace}")
    try:
        yield
    except BaseException:
        _end(place, kubectl, helm, keep=keep, crds=not had_crds, quiet=True)
        raise
    _end(place, kubectl, helm, keep=keep, crds=not had_crds, quiet=False)


def _end(place: site.Site, kubectl: Kubectl, helm: Helm, *, keep: bool, crds: bool, quiet: bool) -> None:
    """Clean up, or say what is kept. quiet: another error is on its way, which this one shall not hide."""
    if keep:
        print(f"kept: export KUBECONFIG={place.kubeconfig}; kubectl -n {kubectl.namespace} get pods,weightsyncs")
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


def apply(
    folder: Path,
    root: Path,
    place: site.Site,
    kubectl: Kubectl,
    steps: int,
    *,
    more: Sequence[manifests.Json] = (),
) -> None:
    """Trainer, rollout and WeightSync, by a kustomization that is written into ``folder``. Raises DemoError.

    more: patches of it.
    """
    manifests.write(folder, root, place, kubectl.namespace, steps, more=more)
    with progress.step("examples") as step:
        kubectl("apply", "-k", folder)
        step.end(f"applied {folder}")
