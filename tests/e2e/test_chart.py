"""A release's whole life on a real node: install, run the main job, lose the leader, upgrade, roll back, uninstall.

A real Prometheus scrapes it from its first pod on, as the chart's PodMonitors say, and answers what its dashboard and
its alerts ask.

One test, since each step stands on the one before. The demo's job runs in pods that say by a label alone that they
want an agent, and NetworkPolicies are enforced from before the first pod on. What becomes of a job whose engines come
and go is the demo's own test.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build import injected, questions
from tests.build.job import Job, Json
from tests.build.reach import DATA_PORTS, Port, listening, reached
from tests.build.release import CHART, OURS, RELEASE, SECONDS, WAIT, Release, eventually
from tests.build.scraper import Scraper
from tests.conftest import NodeCluster, unavailable
from tools.chaos.node.striking import container_status
from tools.cluster import node, policies
from tools.demo import readback
from tools.demo.options import Options
from tools.demo.site import prepare
from tools.demo.watching import Watching, now_ms
from tools.setup import prometheus
from tools.setup.errors import SetupError
from weightsync import names

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS_OWN = (
    "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "mutatingadmissionpolicies,mutatingadmissionpolicybindings,priorityclasses"
)
NAMESPACES_OWN = (
    "deployments,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,secrets,pods,configmaps,"
    "podmonitors.monitoring.coreos.com,prometheusrules.monitoring.coreos.com"
)
API, ENGINES, OPERATORS = 8960, 30000, 8080
STRANGERS = {"app": "stranger"}
MORE_STEPS_THAN_NEEDED = 5000
KILLS = 4  # of leaders, until one falls in the middle of a sync
WINDOW = "10m"  # of rates: longer than all of this


@pytest.fixture(scope="module")
def life(node_cluster: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """On this machine's node, with the image loaded; whatever a failing test leaves is removed."""
    if not node_cluster.local:
        unavailable("the image of this clone can be loaded into this machine's own node alone")
    report = tmp_path_factory.mktemp("life") / "report.json"
    site = prepare(Options(None, "", "dev", "unused", 8, keep=False, report=report), ROOT)
    found = Release(site)
    had = found.crds()
    yield found
    found.uninstall()
    found.kubectl("delete", "deployments,statefulsets,pods", "--all", "--now", "--wait=false")
    found.kubectl("delete", "namespace", found.namespace, "--ignore-not-found", "--timeout=60s", seconds=90)
    if not had and found.crds():
        found.kubectl("delete", *found.crds())


@pytest.fixture(scope="module")
def scraper(node_cluster: NodeCluster, life: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraper]:
    """A Prometheus to come, and the kinds that the chart's monitoring is made of."""
    try:
        program = prometheus.programs()["prometheus"]
    except SetupError as error:
        unavailable(f"Prometheus cannot be set up: {error}")
    found = Scraper(life, program, tmp_path_factory.mktemp("scraper") / "prometheus")
    found.make_kinds()
    yield found
    life.uninstall()
    found.clear()


def test_a_releases_life(life: Release, scraper: Scraper, tmp_path: Path) -> None:
    """The job's versions advance from the first to the last step of this, each whole, and nothing is left of it."""
    with policies.enforced():
        life.install(*scraper.values)
        scraper.start()
        life.kubectl("apply", "-k", injected.write(tmp_path, ROOT, life.site, life.namespace, MORE_STEPS_THAN_NEEDED))
        life.kubectl("apply", "-f", "-", stdin=stranger(life.site.image))
        assert "Phase:          Succeeded" in life.helm("test", RELEASE, "--timeout", "120s")
        with Watching(life.site.kubeconfig, life.namespace) as watching:
            job = Job(watching)
            first = job.next("a version that both engines have", both_current, 2 * SECONDS)["step"]
            agents_were_injected(life)
            ports = ports_are_closed_to_a_stranger(life)
            all_is_scraped_and_every_query_answered(life, scraper)
            the_leader_is_killed_in_the_middle_of_a_sync(life, job)
            scraper.sees(targets(life))  # the new replica, too, and the one that is gone no longer
            assert [step for step in job.steps if step["step"] >= first and not both_current(step)] == []
            # Rules that are written anew can cut off a write, whose engine gets its version by a repair then.
            upgraded_and_rolled_back(life, job, ports)
            job.next("a version that both engines have again", both_current, SECONDS)
    ports |= operators(life)
    assert reached(life.kubectl, "stranger", "main", ports) == ports  # it was the policies that closed them
    uninstalled(life)


def stranger(image: str) -> str:
    """A pod of the same namespace that is no part of WeightSync."""
    main = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": ["sleep", "3600"]}
    spec = {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False, "containers": [main]}
    metadata = {"name": "stranger", "labels": STRANGERS}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def both_current(said: Json) -> bool:
    """Whether that is the end of a step whose version both engines got."""
    return said["event"] == "step" and [engine["outcome"] for engine in said["engines"]] == ["Current", "Current"]


def agents_were_injected(life: Release) -> None:
    """Trainers and engines: the agent is up, speaks for its pod and keeps its token; the engine's gate is open."""
    for app, pods in {app: life.pods(f"app={app}") for app in injected.ROLES}.items():
        assert len(pods) == 2, pods.keys()
        for name, pod in pods.items():
            assert [one["name"] for one in pod["spec"]["initContainers"]] == ["weightsync-agent"]
            assert container_status(pod, "weightsync-agent")["started"]
            assert names.ANNOUNCEMENT in pod["metadata"]["annotations"]
            gates = [one["conditionType"] for one in pod["spec"].get("readinessGates", [])]
            assert gates == ([names.GATE] if app == "rollout" else [])
            main = pod["spec"]["containers"][0]["name"]
            listing = "ls /dev/weightsync; ls /var/run/secrets/kubernetes.io/serviceaccount 2>&1 || true"
            seen = life.kubectl("exec", name, "-c", main, "--", "sh", "-c", listing)
            assert ("agent.sock" in seen) == (app == "trainer")
            assert "No such file" in seen
    engines = sorted(life.pods("app=rollout"))
    assert all(one.digest_ok for one in readback.read_all(life.kubectl, engines, None, SECONDS))


def ports_are_closed_to_a_stranger(life: Release) -> set[Port]:
    """The agents' API and Mooncake's ports are for trainers and not for it, the operator's for neither.

    Returns the agents' and Mooncake's.
    """
    closed: set[Port] = set()
    engines: set[Port] = set()
    for app in injected.ROLES:
        for name, pod in life.pods(f"app={app}").items():
            host, heard = pod["status"]["podIP"], listening(life.kubectl, name)
            data = [port for port in heard if port in DATA_PORTS]
            assert data, f"{name} has no data port: {heard}"
            closed |= {(host, port) for port in (API, *data)}
            engines |= {(host, ENGINES)} if app == "rollout" else set()
    all_of_them = closed | engines | operators(life)
    assert reached(life.kubectl, "stranger", "main", all_of_them) == engines
    assert reached(life.kubectl, "trainer-0", "weightsync-agent", all_of_them) == closed | engines
    return closed


def all_is_scraped_and_every_query_answered(life: Release, scraper: Scraper) -> None:
    """As the chart in the cluster has them: PodMonitors, dashboard, alerts. Policies admit it, as the values say."""
    scraper.sees(targets(life))
    dashboard, namespace = scraper.dashboard(), life.namespace
    metric, label = questions.of_choice(dashboard)
    assert {found["metric"][label] for found in scraper.query(metric)} == {namespace}
    asked = [*questions.of_dashboard(dashboard, namespace, WINDOW), *questions.of_alerts(scraper.alerts())]
    assert scraper.unanswered(asked) == []


def targets(life: Release) -> set[tuple[str, str, str]]:
    """Namespace, pod and container of both operators and of every agent of the job."""
    jobs = life.pods(f"app in ({','.join(injected.ROLES)})")
    containers = [(pod, "operator") for pod in life.pods()] + [(pod, "weightsync-agent") for pod in jobs]
    return {(life.namespace, pod, container) for pod, container in containers}


def operators(life: Release) -> set[Port]:
    """Where they serve health and metrics."""
    return {(pod["status"]["podIP"], OPERATORS) for pod in life.pods().values()}


def the_leader_is_killed_in_the_middle_of_a_sync(life: Release, job: Job) -> None:
    """That sync ends, the next one follows, and the other replica takes the Lease."""
    # What the job says comes late where the machine is busy: its sync may be over by then, and the next leader dies.
    for _ in range(KILLS):
        if leader_killed(life, job):
            return
    pytest.fail(f"each of {KILLS} leaders was killed only once the sync that was to be met had ended")


def leader_killed(life: Release, job: Job) -> bool:
    """Whether it was in the middle of a sync; another leads now, and the job goes on."""
    first = life.leader()
    pod = life.pods()[first]
    process = container_status(pod, "operator")["containerID"].removeprefix("containerd://")
    leader = os.pidfd_open(node.runtime_client().processes()[process])
    said = job.publishing()
    signal.pidfd_send_signal(leader, signal.SIGKILL)
    killed = now_ms()
    os.close(leader)
    # With its pod: a container that is started anew would be the same holder.
    life.kubectl("delete", "pod", first, "--grace-period=0", "--force", "--wait=false")
    ended = job.step(said["step"])
    assert both_current(ended), ended
    job.step(said["step"] + 1)
    eventually("another leader", lambda: life.leader() not in ("", first))
    job.step()
    eventually("a leader that is there", lambda: life.leader() in life.pods())
    return bool(said["unix_ms"] <= killed < ended["unix_ms"])


def locks_any_memory(life: Release) -> None:
    """An agent that is injected now has IPC_LOCK, and the program that runs has it in effect."""
    alone = json.loads(stranger(life.site.image))
    alone["metadata"] = {"name": "locking", "labels": {"weightsync.io/inject": "engine"}}
    life.kubectl("apply", "-f", "-", stdin=json.dumps(alone))

    def agent_of(name: str) -> Json:
        return container_status(life.kubectl.get("pod", name), "weightsync-agent")

    eventually("an agent", lambda: agent_of("locking").get("started"))
    words = ("weightsync", "preflight", "--transport", "tcp", "--size", "1Mi", "-o", "json")
    said = json.loads(life.kubectl("exec", "locking", "-c", "weightsync-agent", "--", *words))
    (memlock,) = [each for each in said["findings"] if each["check"] == "memlock"]
    assert memlock["found"] == "any amount of memory may be locked"
    life.kubectl("delete", "pod", "locking", "--now")


def upgraded_and_rolled_back(life: Release, job: Job, ports: set[Port]) -> None:
    """Versions advance meanwhile. Between the two the stranger may read metrics, and no more than that."""
    before = life.kubectl.get("weightsync", "policy")["spec"]
    change = f"networkPolicy.scrapers={json.dumps([{'podSelector': {'matchLabels': STRANGERS}}])}"
    values = ("--set", "operator.podLabels.step=two", "--set", "agent.injection.ipcLock=true", "--set-json", change)
    words = ("--reset-then-reuse-values", *values, *WAIT)
    life.helm("upgrade", RELEASE, CHART, *words)
    assert {pod["metadata"]["labels"].get("step") for pod in life.pods().values()} == {"two"}
    metrics = {(host, port) for host, port in ports if port == API} | operators(life)
    eventually("metrics", lambda: reached(life.kubectl, "stranger", "main", ports | metrics) == metrics)
    locks_any_memory(life)
    job.step()
    life.helm("rollback", RELEASE, "1", *WAIT)
    eventually("the pods of before", lambda: not any("step" in p["metadata"]["labels"] for p in life.pods().values()))
    eventually("closed again", lambda: not reached(life.kubectl, "stranger", "main", ports | operators(life)))
    job.step()
    assert life.kubectl.get("weightsync", "policy")["spec"] == before


def uninstalled(life: Release) -> None:
    """Resources of users stay, can be deleted with no operator there, and nothing else is left."""
    life.uninstall()
    assert life.names("weightsync") == ["weightsync.weightsync.io/policy"]
    life.kubectl("delete", "weightsync", "policy", "--timeout=20s")
    assert life.names(CLUSTERS_OWN, "-l", OURS) == []
    eventually("all of it gone", lambda: life.names(NAMESPACES_OWN, "-l", OURS) == [])
