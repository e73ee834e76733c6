"""A release's whole life on a real node: install, test, inject, lose the leader, upgrade, roll back, uninstall.

One test, since each step stands on the one before. The demo runs the main job on an installed chart; here it is about
what the chart makes, and that nothing of it is left.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NodeCluster, unavailable
from tools.demo.kubectl import Helm, Kubectl, run
from tools.demo.options import Options
from tools.demo.site import Site, prepare
from weightsync import names

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "weightsync"
RELEASE = "life"
OPERATOR = f"{RELEASE}-weightsync-operator"
OURS = f"app.kubernetes.io/instance={RELEASE}"
CLUSTERS_OWN = (
    "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "mutatingadmissionpolicies,mutatingadmissionpolicybindings,priorityclasses"
)
NAMESPACES_OWN = "deployments,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,secrets,pods"
SECONDS = 120.0


class Life:
    """One release in a namespace of its own."""

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
            f"crds.install={str(not self.crds()).lower()}",
        ]  # fmt: skip

    def helm(self, *words: str | Path) -> str:
        """Any call about the release."""
        place: list[str | Path] = ["--kubeconfig", self.site.kubeconfig, "--namespace", self.namespace]
        return run([self.site.helm, *words, *place], seconds=240)

    def install(self) -> None:
        """Two replicas, ready."""
        settings = [word for value in self.values for word in ("--set", value)]
        self.helm("install", RELEASE, CHART, "--create-namespace", "--wait", "--timeout", "180s", *settings)

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

    def pods(self) -> dict[str, Any]:
        """The operator's pods that are not going."""
        items = self.kubectl.get("pods", "-l", "app.kubernetes.io/component=operator")["items"]
        return {pod["metadata"]["name"]: pod for pod in items if "deletionTimestamp" not in pod["metadata"]}


def eventually(what: str, holds: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Fails with ``what`` at the deadline."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.3)


@pytest.fixture(scope="module")
def life(node_cluster: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """On this machine's node, with the image loaded; whatever a failing test leaves is removed."""
    if not node_cluster.local:
        unavailable("the image of this clone can be loaded into this machine's own node alone")
    report = tmp_path_factory.mktemp("life") / "report.json"
    site = prepare(Options(None, "", "dev", "unused", 8, keep=False, report=report), ROOT)
    found = Life(site)
    had = found.crds()
    yield found
    found.uninstall()
    found.kubectl("delete", "namespace", found.namespace, "--ignore-not-found", "--timeout=60s", seconds=90)
    if not had and found.crds():
        found.kubectl("delete", *found.crds())


def weightsync(name: str) -> str:
    """A resource that selects the trainer below."""
    spec = {part: {"selector": {"matchLabels": {"app": part}}} for part in ("trainer", "rollout")}
    return json.dumps({"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": spec})


def trainer(image: str) -> str:
    """A pod that says by a label alone that it wants an agent."""
    listing = "ls /dev/weightsync; ls /var/run/secrets/kubernetes.io/serviceaccount; exec sleep 600"
    main = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": ["sh", "-c", listing]}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "trainer-0", "labels": {"app": "trainer", "weightsync.io/inject": "trainer"}},
            "spec": {"dnsPolicy": "Default", "terminationGracePeriodSeconds": 0, "containers": [main]},
        }
    )


def test_a_releases_life(life: Life) -> None:
    """Installed, tested, injected into, led by another, upgraded, rolled back, uninstalled, and nothing left."""
    life.install()
    assert "Phase:          Succeeded" in life.helm("test", RELEASE, "--timeout", "120s")

    # An agent by a label: it is up before the pod's own container, speaks for its pod, and keeps its token to itself.
    life.kubectl("apply", "-f", "-", stdin=trainer(life.site.image))
    life.kubectl("wait", "pod/trainer-0", "--for=condition=Ready", f"--timeout={SECONDS:.0f}s", seconds=SECONDS + 10)
    eventually("the announcement", lambda: names.ANNOUNCEMENT in _annotations(life))
    seen = life.kubectl("logs", "trainer-0", "-c", "main")
    assert "agent.sock" in seen
    assert "token" not in seen

    # The leader is killed: another leads, and says of a new WeightSync what it sees.
    first = life.leader()
    assert first in life.pods()
    life.kubectl("delete", "pod", first, "--grace-period=0", "--force")
    eventually("another leader", lambda: life.leader() not in ("", first))
    life.kubectl("apply", "-f", "-", stdin=weightsync("policy"))
    eventually("a status", lambda: bool(life.kubectl.get("weightsync", "policy").get("status", {}).get("conditions")))

    # Upgrade and back.
    change = ("--reuse-values", "--set", "operator.podLabels.step=two", "--wait", "--timeout", "180s")
    life.helm("upgrade", RELEASE, CHART, *change)
    assert {pod["metadata"]["labels"].get("step") for pod in life.pods().values()} == {"two"}
    life.helm("rollback", RELEASE, "1", "--wait", "--timeout", "180s")
    eventually("the pods of before", lambda: not any("step" in p["metadata"]["labels"] for p in life.pods().values()))
    assert life.kubectl.get("weightsync", "policy")["spec"]["suspend"] is False

    # Uninstalled: resources of users stay, can be deleted with no operator there, and nothing else is left.
    life.uninstall()
    assert life.names("weightsync") == ["weightsync.weightsync.io/policy"]
    life.kubectl("delete", "weightsync", "policy", "--timeout=20s")
    assert life.names(CLUSTERS_OWN, "-l", OURS) == []
    eventually("all of it gone", lambda: life.names(NAMESPACES_OWN, "-l", OURS) == [])


def _annotations(life: Life) -> dict[str, str]:
    found: dict[str, str] = life.kubectl.get("pod", "trainer-0")["metadata"].get("annotations", {})
    return found
