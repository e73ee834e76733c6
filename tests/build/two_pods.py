"""One engine of two pods as a LeaderWorkerSet makes them: its labels, its names, one template, two processes."""

from __future__ import annotations

import copy
from typing import Any

from tests.build import injected
from weightsync import names

Json = dict[str, Any]

NAME, PODS = "rollout", 2
LEADER = f"{NAME}-0"  # the name of the leader's pod, of the engine, and of the Service that members ask for it
LWS = "leaderworkerset.sigs.k8s.io"
INDEX = f"{LWS}/worker-index"
MEETING = 20000
AGENT = 8960
MORE_STEPS_THAN_NEEDED = 5000
PATCHES: tuple[Json, ...] = (
    {
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "trainer"},
        "spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [
            {"name": "trainer", "args": ["--steps", str(MORE_STEPS_THAN_NEEDED), "--stay", *injected.LITTLE]},
        ]}}},
    },
    {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": NAME}, "spec": {"replicas": 0},
    },
    {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": {"selector": {INDEX: "0"}},
    },
    {
        "apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "policy"},
        "spec": {"rollout": {"group": {"by": "LeaderWorkerSet"}}},
    },
)  # fmt: skip


def service() -> Json:
    """Where members find their leader before it is Ready: in the environment of every pod that starts later."""
    ports = [{"name": f"port-{port}", "port": port} for port in (AGENT, MEETING)]
    spec = {"selector": {INDEX: "0"}, "publishNotReadyAddresses": True, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": LEADER}, "spec": spec}


def pod(template: Json, index: int) -> Json:
    """The engine's pod of that index, of the Deployment's template for engines of one pod."""
    spec = copy.deepcopy(template["spec"]) | {"terminationGracePeriodSeconds": 1}
    host = f"$({LEADER.upper().replace('-', '_')}_SERVICE_HOST)"
    (agent,), (engine,) = spec["initContainers"], spec["containers"]
    agent["env"] += [
        {"name": "WEIGHTSYNC_LEADER", "value": host},
        {"name": "WEIGHTSYNC_NODE_RANK", "value": str(index)},
    ]
    # The leader listens at every address of its own: the Service's is none of them.
    meeting = f"{host if index else ''}:{MEETING}"
    engine["args"][0] += f" --tp-size {PODS} --nnodes {PODS} --node-rank {index} --dist-init-addr {meeting}"
    if index:
        del engine["readinessProbe"]  # node 0 alone answers
    labels = {f"{LWS}/name": NAME, f"{LWS}/group-index": "0", INDEX: str(index)}
    metadata = {
        "name": LEADER if index == 0 else f"{LEADER}-{index}",
        "labels": template["metadata"]["labels"] | labels,
        "annotations": {f"{LWS}/size": str(PODS)},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
