"""Asking the cluster, its pods and its devices. Nothing is judged here."""

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rdma.counters import PACKET
from tests.rdma_e2e import pods
from tools.cluster.errors import ClusterError
from tools.demo.kubectl import Kubectl, run
from tools.guest_cluster import control
from tools.guest_cluster.cluster import GuestCluster
from weightsync import names
from weightsync.publisher.outcome import Outcome
from weightsync.report import Report

Json = dict[str, Any]

NAMESPACE = "weightsync-rdma"
RELEASE = "weightsync"
ANSWER_SECONDS = 120.0
PUBLISH_SECONDS = 600.0
BASE = "base"  # the checkpoint that engines start with
EXPECTED = "expected.json"
GATE = "weightsync.io/WeightsCurrent"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Published:
    """A publish: its outcome, its tensors' bytes, what the trainer's device sent meanwhile and the engines' took."""

    outcome: Outcome
    payload: int
    sent: int
    received: int

    @property
    def carried(self) -> float:
        """How many payloads the packets could have held that the trainer's device sent and the engines' took."""
        return min(self.sent, self.received) * PACKET / self.payload


class Site:
    """The cluster, and what is installed in it."""

    def __init__(self, cluster: GuestCluster, kubectl: Kubectl, helm: Path, models: Path) -> None:
        self._expected = json.loads((models / EXPECTED).read_text())
        self.cluster = cluster
        self.kubectl = kubectl
        self._helm = helm
        self._api = control.client(cluster.layout)
        self.trainer_node, self.engine_node = cluster.nodes

    # --- changing ---

    def install(self, *values: Path) -> None:
        """The chart; what it makes is not waited for."""
        run(
            [self._helm, "install", RELEASE, ROOT / "charts" / "weightsync", "--create-namespace",
             "--kubeconfig", self.cluster.kubeconfig, "--namespace", NAMESPACE,
             *(word for path in values for word in ("--values", path))],
            seconds=ANSWER_SECONDS,
        )  # fmt: skip

    def make(self, *objects: Json) -> None:
        """Create them."""
        document = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("create", "-f", "-", stdin=json.dumps(document))

    # --- asking ---

    def right_tokens(self, name: str) -> list[int]:
        """What torch computed of a checkpoint."""
        return list(self._expected["tokens"][name])

    def get(self, kind: str, name: str = "", group: str = "api/v1") -> Json:
        """An object, or all of a kind. Raises ClusterError, OSError."""
        return self._api.get(f"/{group}/namespaces/{NAMESPACE}/{kind}/{name}".rstrip("/"))

    def pods(self, app: str) -> list[Json]:
        """Pods with that label, those that are leaving left out; none where the API server does not answer."""
        try:
            found = self._api.get(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={app}")["items"]
        except (ClusterError, OSError):
            return []
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def engines(self) -> list[Json]:
        """All of the rollout."""
        return self.pods("app=rollout")

    def weightsync(self) -> Json:
        """The WeightSync's status."""
        return dict(self.get("weightsyncs", "policy", "apis/weightsync.io/v1alpha1").get("status", {}))

    def condition(self, kind: str) -> Json:
        """One of its conditions; empty where it is not there yet."""
        try:
            found = self.weightsync().get("conditions", [])
        except (ClusterError, OSError):
            return {}
        return next((each for each in found if each["type"] == kind), {})

    def known(self) -> int:
        """How many engines the coordinator, which is the trainer's agent, has told of last."""
        for pod in self.pods("app=trainer"):
            said = pod["metadata"].get("annotations", {}).get(names.REPORT)
            if said is not None:
                report = Report.model_validate_json(said)
                return report.current + report.behind + report.joining + report.failed
        return 0

    def offenders(self) -> list[tuple[str, str]]:
        """Engines that the status names as not current, with the reason."""
        try:
            return [(each["engine"], each["reason"]) for each in self.weightsync().get("worst", [])]
        except (ClusterError, OSError):
            return []

    def tokens(self, pod: Json) -> list[int]:
        """What an engine generates."""
        sampling = {"temperature": 0, "max_new_tokens": self._expected["count"], "ignore_eos": True}
        body = {"input_ids": self._expected["prompt"], "sampling_params": sampling}
        answer = self._ask(pod, pods.ENGINE_PORT, "/generate", body)
        return list(answer["output_ids"])

    def publish(self, name: str) -> Published:
        """Have the trainer publish a checkpoint; returns when it is over."""
        before = [self.cluster.counted(node) for node in self.cluster.nodes]
        (pod,) = self.pods("app=trainer")
        answer = self._ask(pod, pods.TRAINER_PORT, f"/{name}", {}, seconds=PUBLISH_SECONDS)
        after = [self.cluster.counted(node) for node in self.cluster.nodes]
        return Published(
            Outcome.model_validate(answer["outcome"]),
            answer["payload"],
            after[0].sent - before[0].sent,
            after[1].received - before[1].received,
        )

    def written_over_tcp(self) -> float:
        """Bytes that the trainer's agent counts as written over TCP."""
        (pod,) = self.pods("app=trainer")
        with urllib.request.urlopen(f"http://{address(pod)}:8960/metrics", timeout=ANSWER_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        named = [line for line in lines if line.startswith("weightsync_agent_written_bytes_total{")]
        return sum(float(line.rpartition(" ")[2]) for line in named if 'transport="tcp"' in line)

    def devices_in(self, pod: str, container: str) -> list[str]:
        """Files below /dev/infiniband of a container."""
        words = ("sh", "-c", "ls /dev/infiniband 2>/dev/null || true")
        return self.kubectl("exec", pod, "--container", container, "--", *words, seconds=ANSWER_SECONDS).split()

    def _ask(self, pod: Json, port: int, path: str, body: Json, *, seconds: float = ANSWER_SECONDS) -> Any:
        request = urllib.request.Request(
            f"http://{address(pod)}:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310 - of our own making
            return json.loads(answer.read())


def address(pod: Json) -> str:
    """Of a pod that runs."""
    return str(pod["status"]["podIP"])


def name(pod: Json) -> str:
    """Of any pod."""
    return str(pod["metadata"]["name"])


def runs(pod: Json, container: str) -> bool:
    """Whether a container of it has been started and is not over; of those with probes, answers."""
    status = pod.get("status", {})
    found = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
    return any(each["name"] == container and each["ready"] and "running" in each["state"] for each in found)


def is_open(pod: Json) -> bool:
    """Whether its gate is."""
    return any(
        each["type"] == GATE and each["status"] == "True" for each in pod.get("status", {}).get("conditions", [])
    )


def restarts(pod: Json) -> dict[str, int]:
    """Containers that were started again, and how often."""
    status = pod.get("status", {})
    found = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
    return {each["name"]: each["restartCount"] for each in found if each["restartCount"]}
