"""The demo's own namespace: made with a mark, so that no other one is ever removed."""

from __future__ import annotations

import json

from tools.demo.errors import DemoError
from tools.demo.kubectl import Helm, Kubectl

MARK = "weightsync.io/demo"
CRDS = ("weightsyncs.weightsync.io", "weightsyncslices.weightsync.io")
GONE_SECONDS = 120


def make(kubectl: Kubectl, helm: Helm) -> None:
    """Make it anew; what an earlier run left in it is removed. Raises DemoError where it is not the demo's."""
    found = kubectl("get", "namespace", kubectl.namespace, "--ignore-not-found", "-o", "json").strip()
    if found:
        if MARK not in json.loads(found)["metadata"].get("labels", {}):
            raise DemoError(
                f"namespace {kubectl.namespace} is there and was not made by the demo, which would remove it at the "
                "end: name another one with --namespace"
            )
        remove(kubectl, helm, crds=False)
    made = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": kubectl.namespace, "labels": {MARK: "true"}},
    }
    kubectl("create", "-f", "-", stdin=json.dumps(made))


def has_crds(kubectl: Kubectl) -> bool:
    """Whether the cluster knows WeightSyncs already."""
    return bool(kubectl("get", "crd", CRDS[0], "--ignore-not-found").strip())


def remove(kubectl: Kubectl, helm: Helm, *, crds: bool) -> None:
    """Chart and namespace. ``crds``: the types too, which a chart leaves, unless somebody uses them."""
    helm.uninstall()
    words = ("delete", "namespace", kubectl.namespace, "--ignore-not-found", f"--timeout={GONE_SECONDS}s")
    kubectl(*words, seconds=GONE_SECONDS + 30)
    if crds and has_crds(kubectl) and not kubectl.get("weightsyncs", "--all-namespaces")["items"]:
        kubectl("delete", "crd", *CRDS)
