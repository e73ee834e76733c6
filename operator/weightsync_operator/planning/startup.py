"""Workloads that make their next pod only when the last is Ready, behind a gate that a first version opens. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from weightsync_operator.planning.pods import Pod

INDEX = "apps.kubernetes.io/pod-index"


def suspects(pods: Iterable[Pod]) -> dict[str, Pod]:
    """StatefulSets, by name, of which an engine pod waits for our gate alone: the last that is there."""
    found: dict[str, Pod] = {}
    for pod in pods:
        index = pod.labels.get(INDEX, "")
        if not pod.gated or not index.isdecimal():
            continue
        name = pod.name.removesuffix(f"-{index}")
        known = found.get(name)
        if known is None or int(known.labels[INDEX]) < int(index):
            found[name] = pod
    return found


def stuck(statefulset: Mapping[str, Any], last: Pod) -> str:
    """What to do about it, where the StatefulSet has more pods to make and waits for ``last``; else ""."""
    name, spec = statefulset["metadata"]["name"], statefulset.get("spec", {})
    more = int(spec.get("replicas", 1)) - 1 - int(last.labels[INDEX])
    if more <= 0 or spec.get("podManagementPolicy", "OrderedReady") == "Parallel":
        return ""
    return (
        f"StatefulSet {name} makes {more} more of its pods only once pod {last.name} is Ready, which initialGate: "
        "Closed puts off until a version is published: set podManagementPolicy: Parallel, or initialGate: Open"
    )
