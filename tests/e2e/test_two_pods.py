"""An engine whose two ranks are two pods, under a real kubelet: it is served as one, and comes back as one."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.build import two_pods
from tests.build.job import Job
from tests.build.release import eventually
from tests.conftest import NodeCluster, unavailable
from tools.chaos.node.striking import container_status
from tools.demo import diagnosis, installing, readback
from tools.demo.kubectl import Kubectl
from tools.demo.options import Options
from tools.demo.site import prepare
from tools.demo.watching import Watching
from weightsync import names

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "weightsync-pair"
SECONDS = 120.0
LEADER, MEMBER = two_pods.LEADER, f"{two_pods.LEADER}-1"

Json = dict[str, Any]


class Pair:
    """The engine's pods, made and deleted as a LeaderWorkerSet would that restarts no group."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl
        self._template = kubectl.get("deployment", two_pods.NAME)["spec"]["template"]

    def make(self, *indices: int) -> None:
        """Its Service has to be there first."""
        items = [two_pods.pod(self._template, index) for index in indices]
        self.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def replace_member(self) -> None:
        """The pod goes, and another one comes under its name."""
        self.kubectl("delete", "pod", MEMBER, "--grace-period=1", seconds=SECONDS)
        self.make(1)

    def pods(self) -> list[Json]:
        """Leader and member."""
        return [self.kubectl.get("pod", name) for name in (LEADER, MEMBER)]

    def uids(self) -> list[str]:
        """Of both pods, by rank."""
        return [str(pod["metadata"]["uid"]) for pod in self.pods()]

    def planned(self) -> list[list[str]]:
        """By engine of the plan in force, the uids of the pods that hold its ranks."""
        head = self.kubectl.get("weightsync", "policy")["status"]["head"]["slices"]
        parts = [part for part in self.kubectl.get("weightsyncslices")["items"] if part["metadata"]["name"] in head]
        return [[t["uid"] for t in engine["targets"]] for part in parts for engine in part["spec"].get("engines", [])]

    def current(self) -> bool:
        """Both pods' gates are open."""
        truth = [{c["type"]: c["status"] for c in pod["status"].get("conditions", [])} for pod in self.pods()]
        return all(each.get(names.GATE) == "True" for each in truth)

    def starts(self) -> list[int]:
        """How often each pod's engine was started again."""
        return [int(container_status(pod, "engine")["restartCount"]) for pod in self.pods()]


@pytest.fixture
def namespace(node_cluster: NodeCluster, tmp_path: Path) -> Iterator[Kubectl]:
    """The chart and the example's trainer in a namespace of their own, with no engine yet."""
    if not node_cluster.local:
        unavailable("the image of this clone can be loaded into this machine's own node alone")
    site = prepare(Options(None, "", "dev", NAMESPACE, 8, keep=False, report=tmp_path / "report.json"), ROOT)
    kubectl, helm = installing.programs(site, NAMESPACE)
    with installing.installed(ROOT, site, kubectl, helm):
        kubectl("create", "-f", "-", stdin=json.dumps(two_pods.service()))
        steps = two_pods.MORE_STEPS_THAN_NEEDED
        installing.apply(tmp_path / "job", ROOT, site, kubectl, steps, more=two_pods.PATCHES)
        yield kubectl


def test_an_engine_of_two_pods(namespace: Kubectl) -> None:
    """What is published stands in both pods, and again after one was replaced; no answer is of two versions."""
    pair = Pair(namespace)
    pair.make(0, 1)
    try:
        with Watching(namespace.kubeconfig, namespace.namespace) as watching:
            job = Job(watching)
            job.next("a version that the engine has", is_current, 2 * SECONDS)
            holds(pair, job)
            assert pair.starts() == [0, 0]
            pair.replace_member()
            eventually("a plan with the new pod", lambda: pair.planned() == [pair.uids()], SECONDS)
            job.next("a version that the engine has again", is_current, SECONDS)
            holds(pair, job)
            assert pair.starts()[0] > 0, "its peer was gone: no process outlives another"
    except AssertionError:
        sys.stderr.write(diagnosis.describe(namespace) + "\n")
        raise


def holds(pair: Pair, job: Job) -> None:
    """Planned by its pods, open at both gates, and equal to what was verified in both; the job goes on."""
    assert pair.planned() == [pair.uids()]
    eventually("both gates", pair.current, SECONDS)
    (found,) = readback.read_all(pair.kubectl, [LEADER], None, SECONDS)
    assert found.digest_ok
    assert is_current(job.step())


def is_current(said: Json) -> bool:
    """Whether that is the end of a step whose version the engine got."""
    engines = said.get("engines", []) if said["event"] == "step" else []
    return [(engine["engine"], engine["outcome"]) for engine in engines] == [(LEADER, "Current")]
