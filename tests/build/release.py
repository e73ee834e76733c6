"""One release of the chart in a namespace of its own on a real node, seen through helm and kubectl."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.demo.kubectl import Helm, Kubectl, run
from tools.demo.site import Site
from weightsync import names

CHART = Path(__file__).resolve().parents[2] / "charts" / "weightsync"
RELEASE = "life"
OPERATOR = f"{RELEASE}-weightsync-operator"
OURS = f"app.kubernetes.io/instance={RELEASE}"
SECONDS = 120.0
WAIT = ("--wait", "--timeout", "180s")


class Release:
    """Two operators; agents injected into the namespace's pods, small enough for one node."""

    def __init__(self, site: Site) -> None:
        self.namespace = f"life-{uuid.uuid4().hex[:8]}"
        self.site = site
        self.kubectl = Kubectl(site.kubectl, site.kubeconfig, self.namespace)
        self._uninstall = Helm(site.helm, site.kubeconfig, self.namespace, RELEASE).uninstall
        image, _, tag = site.image.rpartition(":")
        self.values = [
            f"image.repository={image}", f"image.tag={tag}", f"agent.namespaces={{{self.namespace}}}",
            f"operator.watchNamespaces={{{self.namespace}}}", "operator.resources.requests.cpu=50m",
            "agent.injection.trainerResources.requests.cpu=50m",
            "agent.injection.trainerResources.requests.memory=256Mi",
            "agent.injection.engineResources.requests.cpu=50m",
            "agent.injection.engineResources.requests.memory=256Mi",
            "agent.injection.env.WEIGHTSYNC_PROBE_SECONDS=0.25",
            f"crds.install={str(not self.crds()).lower()}",
        ]  # fmt: skip

    def helm(self, *words: str | Path) -> str:
        """Any call about the release."""
        place: list[str | Path] = ["--kubeconfig", self.site.kubeconfig, "--namespace", self.namespace]
        return run([self.site.helm, *words, *place], seconds=240)

    def install(self, *more: str) -> None:
        """Two replicas, ready. more: values besides the release's own."""
        settings = [word for value in (*self.values, *more) for word in ("--set", value)]
        self.helm("install", RELEASE, CHART, "--create-namespace", *WAIT, *settings)

    def uninstall(self) -> None:
        """As a user does it."""
        self._uninstall()

    def crds(self) -> list[str]:
        """Our types that the cluster knows."""
        found = self.kubectl("get", "crd", "-o", "name").split()
        return [name for name in found if name.endswith(f".{names.GROUP}")]

    def names(self, kinds: str, *words: str) -> list[str]:
        """Objects of these kinds that are there."""
        return self.kubectl("get", kinds, "-o", "name", "--ignore-not-found", *words).split()

    def leader(self) -> str:
        """The pod that holds the Lease; "" where nobody does."""
        found = self.kubectl("get", "lease", OPERATOR, "--ignore-not-found", "-o", "json")
        return str(json.loads(found)["spec"].get("holderIdentity", "")) if found.strip() else ""

    def pods(self, selector: str = "app.kubernetes.io/component=operator") -> dict[str, Any]:
        """Pods, the operator's where nothing else is said, that are not going."""
        items = self.kubectl.get("pods", "-l", selector)["items"]
        return {pod["metadata"]["name"]: pod for pod in items if "deletionTimestamp" not in pod["metadata"]}


def eventually(what: str, holds: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Fails with ``what`` at the deadline."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.3)
