"""The trial's pods, as a user would write them: a label asks for the agent, and the chart's values give it a device.

Pure. Nothing of WeightSync but that label and the hook's name stands here.
"""

import copy
from pathlib import Path
from typing import Any

from tools.guest_cluster.places import RESOURCE

Json = dict[str, Any]

IMAGE = "localhost/weightsync-base:bookworm"
ENGINE_PORT = 30000
TRAINER_PORT = 7000
ANY = "0.0.0.0"  # noqa: S104 - in the pod's own network
AGENT = "weightsync-agent"
WAITING = "waiting"
TRAINER_NODE, ENGINE_NODE = "guest-1", "guest-2"
# A probe that is not answered within a second is no sign of anything here.
PATIENT = {"periodSeconds": 3, "timeoutSeconds": 30, "failureThreshold": 200}


def trainer(places: dict[str, Path]) -> Json:
    """One rank, on the first node."""
    container = {
        "name": "trainer",
        "command": ["python3", "-m", "trainer", "/opt/models", str(TRAINER_PORT)],
        "readinessProbe": {"tcpSocket": {"port": TRAINER_PORT}, **PATIENT},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "trainer"},
        "spec": {
            "replicas": 1,
            "serviceName": "trainer",
            "selector": {"matchLabels": {"app": "trainer"}},
            "template": _template("trainer", "trainer", TRAINER_NODE, container, places),
        },
    }


def rollout(places: dict[str, Path]) -> Json:
    """One engine, on the second node."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "rollout"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "rollout"}},
            "template": _template("rollout", "engine", ENGINE_NODE, _engine(), places),
        },
    }


def without_device(admitted: Json, name: str) -> Json:
    """An engine like ``admitted``, as the API server has it, whose agent asks for no device; on the first node.

    It takes part once its label ``app`` is the rollout's.
    """
    spec = copy.deepcopy(admitted["spec"])
    del spec["nodeName"]
    spec["nodeSelector"] = {"kubernetes.io/hostname": TRAINER_NODE}
    (agent,) = (each for each in spec["initContainers"] if each["name"] == AGENT)
    for amounts in agent["resources"].values():
        amounts.pop(RESOURCE, None)
    for variable in agent["env"]:
        if variable["name"] == "WEIGHTSYNC_TRANSPORT":
            variable["value"] = "auto"  # one that is to take RDMA would not even start
    labels = {key: value for key, value in admitted["metadata"]["labels"].items() if key != "pod-template-hash"}
    labels["app"] = WAITING
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def _engine() -> Json:
    return {
        "name": "engine",
        "command": [
            "python3", "-m", "reference.server", "--model-path", "/opt/models/base", "--host", ANY,
            "--port", str(ENGINE_PORT), "--custom-weight-loader", "weightsync_hook.load",
        ],
        "ports": [{"containerPort": ENGINE_PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": ENGINE_PORT}, **PATIENT},
    }  # fmt: skip


def _template(app: str, role: str, node: str, container: Json, places: dict[str, Path]) -> Json:
    environment = {
        "PYTHONPATH": "/opt/trial/light:/opt/trial:/opt/packages",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    names = {place: place.rpartition("/")[2] for place in places}
    own = {
        "image": IMAGE,
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumeMounts": [{"name": names[place], "mountPath": place, "readOnly": True} for place in places],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **container,
    }
    return {
        "metadata": {"labels": {"app": app, "weightsync.io/inject": role}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "dnsPolicy": "Default",
            "terminationGracePeriodSeconds": 5,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532},
            "containers": [own],
            "volumes": [
                {"name": names[place], "hostPath": {"path": str(folder), "type": "Directory"}}
                for place, folder in places.items()
            ],
        },
    }
