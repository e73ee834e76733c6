"""A real kubelet starts the agent, then what makes copy programs, then the engine; and one that fails says why.

The pods of docs/agent-sidecar.md without the engine itself: order, users and the shared volume are what is tested.
"""

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NodeCluster, unavailable
from tools.cluster import layout, node
from tools.images import build, load
from tools.setup import examples_env

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
AGENT, ENGINE = "localhost/weightsync:dev", "localhost/weightsync-base:bookworm"
POD_SECONDS = 120.0
PROBE = {"httpGet": {"path": "/healthz", "port": 8960}, "periodSeconds": 1, "failureThreshold": 60}
SHARED = {"name": "weightsync", "mountPath": "/dev/weightsync"}
ENGINES_USER = {"runAsUser": 1000, "runAsGroup": 1000}  # the agent's is another

WRITES = """
from pathlib import Path
import weightsync
from weightsync.convert.program import CopyProgram
from weightsync.layout import lay_out
from weightsync.records import replace_file
program = CopyProgram(layout=lay_out([("w", "float32", (4,))]), tensors=[])
replace_file(Path("/dev/weightsync/layouts/rank-0.json"), program.canonical())
print(weightsync.__file__)
"""
SEES = "cat /dev/weightsync/layouts/rank-0.json && ls /dev/weightsync/python && exec sleep 600"


class Pods:
    """Pods in a namespace of their own."""

    def __init__(self, packages: Path) -> None:
        self._client = node.client(layout.node())
        self._packages = packages
        self.namespace = f"start-{uuid.uuid4().hex[:8]}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        self._client.call("POST", "/api/v1/namespaces", body)
        self._path = f"/api/v1/namespaces/{self.namespace}/pods"

    def run(self, name: str, layouts: list[str]) -> None:
        """A pod whose second init container runs ``layouts`` as the engine's user."""
        python = [{"name": "PYTHONPATH", "value": "/dev/weightsync/python:/packages"}]
        packages = {"name": "packages", "mountPath": "/packages", "readOnly": True}
        agent = {
            "name": "weightsync-agent", "image": AGENT, "restartPolicy": "Always", "volumeMounts": [SHARED],
            # Late, so that a kubelet that did not wait would start the next container too early.
            "command": ["sh", "-c", "sleep 2; exec weightsync-agent"],
            "env": [
                {"name": f"WEIGHTSYNC_{key}", "value": value}
                for key, value in {"ROLE": "engine", "PLAN": "file:/none", "UID": "engine", "AUTH": "none"}.items()
            ],
            "startupProbe": PROBE,
        }  # fmt: skip
        maker = {
            "name": "layouts", "image": ENGINE, "command": ["python3", *layouts], "env": python,
            "volumeMounts": [SHARED, packages], "securityContext": ENGINES_USER,
        }  # fmt: skip
        engine = {
            "name": "engine", "image": ENGINE, "command": ["sh", "-c", SEES], "volumeMounts": [SHARED],
            "securityContext": ENGINES_USER,
        }  # fmt: skip
        spec = {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False,
            "initContainers": [agent, maker], "containers": [engine],
            "volumes": [
                {"name": "weightsync", "emptyDir": {"medium": "Memory"}},
                {"name": "packages", "hostPath": {"path": str(self._packages), "type": "Directory"}},
            ],
        }  # fmt: skip
        status, text = self._client.call(
            "POST", self._path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        )
        assert status == 201, text

    def ended(self, name: str, phase: str) -> dict[str, Any]:
        """Its containers' states by name, once it is in that phase."""
        limit = time.monotonic() + POD_SECONDS
        while (found := self._client.get(f"{self._path}/{name}")["status"])["phase"] != phase:
            assert time.monotonic() < limit, f"pod {name} is not {phase}: {json.dumps(found)}"
            time.sleep(0.1)
        states = found["initContainerStatuses"] + found["containerStatuses"]
        return {each["name"]: each["state"] for each in states}

    def log(self, name: str, container: str) -> str:
        """What a container wrote."""
        return self._client.call("GET", f"{self._path}/{name}/log?container={container}")[1]

    def close(self) -> None:
        self._client.call("DELETE", f"/api/v1/namespaces/{self.namespace}")


@pytest.fixture(scope="module")
def pods(node_cluster: NodeCluster) -> Iterator[Pods]:
    """On this machine's node, where the images can be loaded."""
    if not node_cluster.local:
        unavailable("KUBECONFIG names another cluster: these pods mount folders of this machine")
    load.load(build.prepare(ROOT))
    here = Pods(examples_env.prepare(ROOT))
    here.run("whole", ["-c", WRITES])
    here.run("broken", ["-m", "weightsync.replicas", "--model", "/model", "--out", "/dev/weightsync/layouts"])
    yield here
    here.close()


def test_programs_are_made_between_the_agents_start_and_the_engines(pods: Pods) -> None:
    """With the package that the agent laid there; the engine's container finds agent's and maker's files."""
    states = pods.ended("whole", "Running")
    assert pods.log("whole", "layouts") == "/dev/weightsync/python/weightsync/__init__.py\n"
    made, engine = states["layouts"]["terminated"], states["engine"]["running"]
    assert made["exitCode"] == 0
    assert states["weightsync-agent"]["running"]["startedAt"] < made["startedAt"] <= engine["startedAt"]
    seen = pods.log("whole", "engine")
    assert '"name":"w"' in seen
    assert "weightsync_hook.py" in seen


def test_what_cannot_make_programs_keeps_the_engine_from_starting_and_says_why(pods: Pods) -> None:
    """An image without SGLang: one sentence in the log of the init container, no program, no engine."""
    states = pods.ended("broken", "Failed")
    assert states["layouts"]["terminated"]["exitCode"] == 1
    assert "running" not in states["engine"]
    assert pods.log("broken", "layouts").startswith("error: SGLang cannot be imported here: ")
