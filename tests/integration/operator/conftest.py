"""The operator as a process of its own against a real API server, in a namespace of the test's own."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.build import manifests
from tests.build.api import GROUP, Api, Json, eventually
from tests.build.pods import NONCE
from tools.cluster.light import LightCluster
from weightsync.announcement import Announcement, SourceRank, TargetRank
from weightsync.report import Report

ROOT = Path(__file__).resolve().parents[3]
LAYOUT = "a" * 32


@pytest.fixture(scope="session")
def api(light_cluster: LightCluster) -> Api:
    """The API server with our CRDs."""
    client = Api(
        light_cluster.url, light_cluster.authority, (light_cluster.admin.certificate, light_cluster.admin.key)
    )
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text(encoding="utf-8"))
        client.apply(
            f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}", crd, "test"
        )
    for plural in ("weightsyncs", "weightsyncslices"):  # each is served when its own storage is ready
        eventually(f"{plural} are served", partial(client.find, f"{GROUP}/{plural}"))
    return client


class Place:
    """A namespace with what users and agents do in it."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self.syncs_path = f"{GROUP}/namespaces/{namespace}/weightsyncs"
        self.slices_path = f"{GROUP}/namespaces/{namespace}/weightsyncslices"

    def weightsync(self, name: str = "policy", **parts: Any) -> Json:
        return self.api.create(self.syncs_path, manifests.weightsync(name, **parts))

    def status(self, name: str = "policy") -> Json:
        found: Json = self.api.get(f"{self.syncs_path}/{name}").get("status", {})
        return found

    def condition(self, kind: str, name: str = "policy") -> Json:
        return next((c for c in self.status(name).get("conditions", []) if c["type"] == kind), {})

    def reason(self, kind: str, name: str = "policy") -> tuple[str, str]:
        """(status, reason) of a condition."""
        found = self.condition(kind, name)
        return found.get("status", ""), found.get("reason", "")

    def head(self, name: str = "policy") -> Json:
        found: Json = self.status(name).get("head", {})
        return found

    def slices(self) -> list[Json]:
        found: list[Json] = self.api.get(self.slices_path)["items"]
        return found

    def engines(self, name: str = "policy") -> dict[str, Json]:
        """Engines of the plan in force, by name.

        A head that is replaced between two reads takes its slices with it: such a look is taken again.
        """
        parts = eventually("the slices of one head", lambda: self._whole(name), seconds=10)
        return {engine["name"]: engine for part in parts["slices"] for engine in part["spec"].get("engines", [])}

    def _whole(self, name: str) -> dict[str, list[Json]] | None:
        """The slices of the head, or None where one of them is gone."""
        parts = [self.api.find(f"{self.slices_path}/{part}") for part in self.head(name).get("slices", [])]
        found = [part for part in parts if part is not None]
        return {"slices": found} if len(found) == len(parts) else None

    def trainer(self, name: str = "trainer-0", *ranks: SourceRank, app: str = "trainer") -> str:
        """A trainer pod whose Publishers are connected; its uid."""
        uid = self.pod(name, app)
        self.announce_trainer(name, uid, *ranks)
        return uid

    def announce_trainer(self, name: str, uid: str, *ranks: SourceRank, ready: bool = True) -> None:
        sources = ranks or (SourceRank(rank=0, world_size=1, nonce=NONCE),)
        self.announce(name, uid, Announcement(address=f"{name}:8960", ready=ready, sources=sources))

    def engine(self, name: str, *, layout: str = LAYOUT, app: str = "rollout", refused: str = "") -> str:
        """An engine pod that serves; its uid."""
        uid = self.pod(name, app)
        self.announce_engine(name, uid, layout=layout, refused=refused)
        return uid

    def ordered(self, name: str) -> None:
        """A StatefulSet of two engines whose first pod waits for our gate alone, so that the second is not made."""
        template = {"metadata": {"labels": {"app": "rollout"}}, "spec": manifests.pod("x", "rollout")["spec"]}
        spec = {"replicas": 2, "selector": {"matchLabels": {"app": "rollout"}}, "template": template}
        made = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}
        self.api.create(f"/apis/apps/v1/namespaces/{self.namespace}/statefulsets", made)
        pod = manifests.pod(f"{name}-0", "rollout", **{"apps.kubernetes.io/pod-index": "0"})
        pod["spec"]["readinessGates"] = [{"conditionType": "weightsync.io/WeightsCurrent"}]
        uid = self.api.create(self.pods_path, pod)["metadata"]["uid"]
        ready = {"type": "ContainersReady", "status": "True"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"uid": uid}, "status": {"conditions": [ready]}}
        self.api.apply(f"{self.pods_path}/{name}-0/status", body, "kubelet-like")
        self.announce_engine(f"{name}-0", uid)

    def announce_engine(
        self, name: str, uid: str, *, layout: str = LAYOUT, incarnation: str = "life-1", refused: str = ""
    ) -> None:
        targets = (TargetRank(rank=0, layout=layout, program=layout),)
        self.announce(
            name,
            uid,
            Announcement(
                address=f"{name}:8960", ready=True, incarnation=incarnation, targets=targets, refused=refused
            ),
        )

    def pod(self, name: str, app: str) -> str:
        """A pod without an agent; its uid."""
        return str(self.api.create(self.pods_path, manifests.pod(name, app))["metadata"]["uid"])

    def announce(self, name: str, uid: str, announcement: Announcement) -> None:
        body = manifests.said(uid, announcement)
        self.api.apply(f"{self.pods_path}/{name}/status", body, "weightsync-agent")

    def report(self, name: str, uid: str, report: Report) -> None:
        self.api.apply(f"{self.pods_path}/{name}/status", manifests.reported(uid, report), "weightsync-report")

    def delete_pod(self, name: str) -> None:
        self.api.delete(f"{self.pods_path}/{name}")

    def served(self, *names: str) -> None:
        """Wait until the plan in force has exactly these engines."""
        eventually(f"a plan of {names}", lambda: set(self.engines()) == set(names) and self.head())


@pytest.fixture
def place(api: Api) -> Iterator[Place]:
    """A fresh namespace; what is left in it is deleted, the WeightSyncs first."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    here = Place(api, name)
    yield here
    for path in (here.syncs_path, here.slices_path, here.pods_path):
        for item in api.get(path)["items"]:
            api.call("DELETE", f"{path}/{item['metadata']['name']}", {"gracePeriodSeconds": 0})


class Operator:
    """A running operator process."""

    def __init__(self, kubeconfig: Path, log: Path, *flags: str) -> None:
        self.log = log
        environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("sdk", "operator")),
            "PYTHONWARNINGS": "error::DeprecationWarning:weightsync_operator",
        }
        command = [sys.executable, "-m", "weightsync_operator", "--health-host=127.0.0.1", "--health-port=0", *flags]
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def port(self) -> int | None:
        """Of health and metrics, once it listens."""
        assert self.process.poll() is None, f"the operator ended with {self.process.returncode}:\n{self.text()}"
        found = re.search(r'"port": (\d+)', self.text())
        return int(found[1]) if found else None

    def ask(self, path: str) -> tuple[int, str]:
        port = eventually("the operator listens", self.port)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """Sum of a metric's series."""
        _, text = self.ask("/metrics")
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))

    def working(self) -> "Operator":
        eventually("the operator works", lambda: self.ask("/readyz")[0] == 200)
        return self

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def operator(light_cluster: LightCluster, api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """One operator at work for all namespaces, and for all tests of a module that do not restart it."""
    one = Operator(light_cluster.kubeconfig, tmp_path_factory.mktemp("operator") / "log").working()
    yield one
    if one.process.poll() is None:
        one.stop(signal.SIGKILL)


class Operators:
    """Starts operators for one namespace, and ends what still runs. Not together with ``operator`` in a module."""

    def __init__(self, kubeconfig: Path, folder: Path, namespace: str) -> None:
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._namespace = namespace
        self.started: list[Operator] = []

    def start(self, *flags: str, kubeconfig: Path | None = None) -> Operator:
        log = self._folder / f"operator-{len(self.started)}.log"
        one = Operator(kubeconfig or self._kubeconfig, log, f"--namespaces={self._namespace}", *flags)
        self.started.append(one)
        return one

    def close(self) -> None:
        for one in self.started:
            if one.process.poll() is None:
                one.stop(signal.SIGKILL)


@pytest.fixture
def operators(light_cluster: LightCluster, tmp_path: Path, place: Place) -> Iterator[Operators]:
    """Operators that serve the test's namespace."""
    made = Operators(light_cluster.kubeconfig, tmp_path, place.namespace)
    yield made
    made.close()
