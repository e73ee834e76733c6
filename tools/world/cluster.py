"""The same world under a real API server and a real operator. No node: the processes are the pods' here too."""

import json
import os
import signal
from http import HTTPStatus
from typing import Any

import yaml

from tools.cluster.errors import ClusterError
from tools.cluster.light import LightCluster
from tools.cluster.processes import Keeper
from tools.world.processes import ROOT, Child, WorldError, python, stands_still, wait
from tools.world.world import World
from weightsync import names
from weightsync.plan import Plan
from weightsync_agent.plan_feed.heads import plan_of, read_slice, read_weightsync

Json = dict[str, Any]
NAMESPACE = "world"
NAME = "policy"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OURS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
API_SERVER = "kube-apiserver"
APPS = {"trainer": "trainer", "engine": "rollout"}


class ClusterWorld(World):
    """plan: fields of the WeightSync's spec beside its selectors. Agents and operator act as the administrator."""

    def __init__(
        self,
        cluster: LightCluster,
        plan: Json | None = None,
        agent_environment: dict[str, str] | None = None,
        *,
        failpoints: bool = False,
    ) -> None:
        super().__init__({}, agent_environment, failpoints=failpoints)
        self.cluster = cluster
        self.planner = self.operator = Child(
            "operator",
            python("weightsync_operator", "--health-host=127.0.0.1", "--health-port=0", f"--namespaces={NAMESPACE}"),
            {"KUBECONFIG": str(cluster.kubeconfig)},
            self.folder / "operator.log",
        )
        self._install(plan or {})

    def _install(self, spec: Json) -> None:
        for path in sorted((ROOT / "crds").glob("*.yaml")):
            self._create(CRDS, yaml.safe_load(path.read_text()))
        self._create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        served = f"{OURS}/{names.PLURAL}"
        wait("the CRDs", lambda: self.cluster.client.has(served), 30)
        selectors = {part: {"selector": {"matchLabels": {"app": part}}} for part in APPS.values()}
        body = {
            "apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": NAME}, "spec": selectors | spec,
        }  # fmt: skip
        self._create(served, body)

    def _create(self, path: str, body: Json) -> Json:
        status, text = self.cluster.client.call("POST", path, body)
        if status != HTTPStatus.CREATED:
            raise WorldError(f"POST {path}: {status} {text[:500]}")
        made: Json = json.loads(text)
        return made

    def _register(self, name: str, role: str, uid: str) -> tuple[str, dict[str, str]]:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": APPS[role]}},
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        }
        uid = self._create(PODS, pod)["metadata"]["uid"]
        return uid, {
            "WEIGHTSYNC_AUTH": "secret",
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "POD_NAME": name,
            "POD_NAMESPACE": NAMESPACE,
            "POD_UID": uid,
        }

    def _forget(self, name: str) -> None:
        self.cluster.client.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def _write_inventory(self) -> None:
        """The pods themselves are the inventory."""

    def plan(self) -> Plan | None:
        """The plan of the head; None while there is none, or while it cannot be read."""
        try:
            owner = read_weightsync(self.cluster.client.get(f"{OURS}/{names.PLURAL}/{NAME}"))
            head = owner.status.head
            parts = [] if head is None else head.slices
            slices = [read_slice(self.cluster.client.get(f"{OURS}/{names.SLICE_PLURAL}/{part}")) for part in parts]
        except (OSError, ClusterError):
            return None
        return plan_of(owner, slices) if head is not None else None


class ApiServer:
    """The light cluster's API server, to be killed and started again at the same address with the same state."""

    def __init__(self, cluster: LightCluster) -> None:
        self._cluster = cluster
        self._keeper = Keeper(cluster.folder / "processes")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal; after SIGKILL it is gone."""
        record = self._keeper.records()[API_SERVER]
        os.kill(record.pid, number)
        if number == signal.SIGSTOP:
            stands_still(record.pid)
        if number == signal.SIGKILL:
            os.waitpid(record.pid, 0)

    def begin(self) -> None:
        """As it was started first. To be called from a thread that lasts: the server may be bound to it, and then the
        kernel ends it with the thread.
        """
        record = self._keeper.records()[API_SERVER]
        self._keeper.start(API_SERVER, record.argv, self._cluster.folder / "logs" / f"{API_SERVER}.log")

    def start(self) -> None:
        """begin(). Returns when it is ready; raises WorldError where it does not become so."""
        self.begin()
        wait("the API server", self._cluster.client.is_ready, 60)
