"""The chart's rights suffice, for the operator and for an agent, and the documented pods are valid."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.build import manifests
from tests.build.api import GROUP, Api, Json, eventually
from tests.build.charts import Helm
from tests.conftest import unavailable
from tests.integration.operator.conftest import ROOT, Operators, Place
from tools.cluster.light import LightCluster
from tools.setup import helm
from tools.setup.errors import SetupError
from weightsync.announcement import Announcement

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
KINDS = {
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
}


def install(api: Api, objects: list[Json]) -> None:
    """Accounts and rights of the rendered chart."""
    for made in objects:
        namespace = made["metadata"].get("namespace")
        place = f"/namespaces/{namespace}" if namespace else ""
        if made["kind"] in KINDS:
            path = f"{RBAC}{place}/{KINDS[made['kind']]}"
        elif made["kind"] == "ServiceAccount":
            path = f"/api/v1{place}/serviceaccounts"
        else:
            continue
        api.apply(f"{path}/{made['metadata']['name']}", made, "helm")


def token(api: Api, namespace: str, account: str) -> str:
    """A token of that service account, as a pod gets it."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return str(api.create(path, body)["status"]["token"])


def kubeconfig(cluster: LightCluster, folder: Path, secret: str) -> Path:
    """A file with which a program is that account and nobody else."""
    path = folder / "kubeconfig"
    entry: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [
            {"name": "x", "cluster": {"server": cluster.url, "certificate-authority": str(cluster.authority)}}
        ],
        "users": [{"name": "x", "user": {"token": secret}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    }
    path.write_text(json.dumps(entry), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def chart() -> Helm:
    """Helm; the test is unavailable where it cannot be fetched."""
    try:
        return Helm(helm.executable())
    except SetupError as error:
        unavailable(f"helm cannot be set up: {error}")
        raise


@pytest.fixture
def rights(api: Api, place: Place, chart: Helm) -> Iterator[str]:
    """The chart installed into the test's namespace, for that namespace alone; the namespace."""
    flags = (f"--set=operator.watchNamespaces={{{place.namespace}}}", f"--set=agent.namespaces={{{place.namespace}}}")
    objects = chart.objects(*flags, "--set=crds.install=false", "--set=rbac.aggregate=false")
    text = json.dumps(objects).replace("weightsync-system", place.namespace)
    install(api, json.loads(text))
    yield place.namespace
    api.call("DELETE", f"{RBAC}/clusterroles/weightsync-agent")


def test_the_operator_works_with_the_charts_rights(
    rights: str, place: Place, operators: Operators, light_cluster: LightCluster, tmp_path: Path
) -> None:
    """A plan, its events and its Lease, and not one call that was forbidden."""
    api = place.api
    config = kubeconfig(light_cluster, tmp_path, token(api, rights, "weightsync-operator"))
    flags = ("--leader-election", f"--lease-namespace={rights}", "--lease-name=weightsync-operator")
    one = operators.start(*flags, kubeconfig=config).working()
    place.weightsync(rollout={"selector": {"matchLabels": {"app": "rollout"}}, "initialGate": "Closed"})
    place.trainer()
    place.engine("rollout-a")
    place.served("rollout-a")
    place.ordered("s")
    eventually("the StatefulSet is read", lambda: place.reason("Degraded") == ("True", "OrderedStartup"))
    events = f"/apis/events.k8s.io/v1/namespaces/{rights}/events"
    eventually("events", lambda: api.get(events)["items"])
    assert 'weightsync_operator_errors_total{reason="KubeForbidden"} 0.0' in one.ask("/metrics")[1].splitlines()
    assert one.stop() == 0
    assert "forbidden" not in one.text().lower()


def test_a_namespace_without_a_role_stops_no_other(
    rights: str, place: Place, operators: Operators, light_cluster: LightCluster, tmp_path: Path
) -> None:
    """As where one of several was deleted; it is served as soon as it has its role back."""
    api, other = place.api, f"{rights}-other"
    api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    there = Place(api, other)
    config = kubeconfig(light_cluster, tmp_path, token(api, rights, "weightsync-operator"))
    one = operators.start(f"--namespaces={other}", kubeconfig=config).working()
    for here in (place, there):
        here.weightsync()
        here.trainer()
        here.engine("rollout-a")
    place.served("rollout-a")
    assert there.status() == {}
    assert f'"namespace": "{other}"' in one.text()
    assert one.metric("weightsync_operator_closed_namespaces") == 1
    for kind in ("roles", "rolebindings"):
        found = api.get(f"{RBAC}/namespaces/{rights}/{kind}/weightsync-operator")
        found["metadata"] = {"name": "weightsync-operator", "namespace": other}
        api.create(f"{RBAC}/namespaces/{other}/{kind}", found)
    there.served("rollout-a")
    assert one.metric("weightsync_operator_closed_namespaces") == 0
    assert one.process.poll() is None


def test_a_replica_without_rights_on_its_lease_is_not_ready(
    rights: str, place: Place, operators: Operators, light_cluster: LightCluster, tmp_path: Path
) -> None:
    """It says what its role lacks: it could never take the leader's place."""
    config = kubeconfig(light_cluster, tmp_path, token(place.api, rights, "weightsync-operator"))
    elsewhere = ("--leader-election", "--lease-namespace=kube-system", "--lease-name=weightsync-operator")
    one = operators.start(*elsewhere, kubeconfig=config)
    eventually("it says so", lambda: "Lease kube-system/weightsync-operator may not be used" in one.ask("/readyz")[1])
    assert one.ask("/readyz")[0] == 503
    assert one.ask("/healthz")[0] == 200


def test_an_agent_may_say_what_it_is_and_no_more(
    rights: str, api: Api, place: Place, light_cluster: LightCluster
) -> None:
    """It reads WeightSyncs and single slices, writes pods/status; it may not read or change a pod, or list slices."""
    agent = Api(light_cluster.url, light_cluster.authority, token=token(api, rights, "weightsync-agent"))
    uid = place.pod("rollout-a", "rollout")
    said = manifests.said(uid, Announcement(address="a:1"))
    agent.apply(f"{place.pods_path}/rollout-a/status", said, "weightsync-agent")
    assert agent.get(place.syncs_path)["items"] == []
    assert agent.call("GET", f"{place.slices_path}/none").status == 404
    refused = [
        agent.call("GET", place.slices_path),
        agent.call("GET", f"{place.pods_path}/rollout-a"),
        agent.call("POST", place.syncs_path, manifests.weightsync()),
        agent.call(
            "PATCH",
            f"{place.pods_path}/rollout-a",
            {"metadata": {"labels": {"a": "b"}}},
            "application/merge-patch+json",
        ),
        agent.call("DELETE", f"{place.pods_path}/rollout-a"),
        agent.call("GET", f"/api/v1/namespaces/{rights}/secrets"),
        agent.call("GET", f"{GROUP}/weightsyncs"),
    ]
    assert {answer.status for answer in refused} == {403}


def documented() -> dict[str, str]:
    """Every manifest of the documentation, by the file name in its first line."""
    text = (ROOT / "docs" / "agent-sidecar.md").read_text(encoding="utf-8")
    return dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", text, re.DOTALL))


@pytest.mark.parametrize("name", ["trainer-pod.yaml", "engine-pod.yaml", "weightsync.yaml"])
def test_the_documented_manifests_are_valid(api: Api, place: Place, name: str) -> None:
    """The server takes them as they stand, with no unknown field."""
    made = yaml.safe_load(documented()[name])
    path = place.syncs_path if made["kind"] == "WeightSync" else place.pods_path
    answer = api.call("POST", f"{path}?dryRun=All&fieldValidation=Strict", made)
    assert answer.status == 201, answer.message


@pytest.mark.parametrize(("name", "role"), [("trainer-pod.yaml", "trainer"), ("engine-pod.yaml", "engine")])
def test_the_documented_pods_are_what_agents_need(name: str, role: str) -> None:
    """Every container has the volume; the engine has the gate and the hook's path; the token has our audience."""
    spec = yaml.safe_load(documented()[name])["spec"]
    for container in spec["initContainers"] + spec["containers"]:
        assert {"name": "weightsync", "mountPath": "/dev/weightsync"} in container["volumeMounts"]
    agent, *rest = spec["initContainers"]
    environment = {entry["name"]: entry.get("value") for entry in agent["env"]}
    assert environment["WEIGHTSYNC_ROLE"] == role
    assert environment.keys() >= {"POD_NAME", "POD_NAMESPACE", "POD_UID", "POD_IP"}
    assert agent["restartPolicy"] == "Always"
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["weightsync"]["emptyDir"]["medium"] == "Memory"
    assert volumes["weightsync-token"]["projected"]["sources"][0]["serviceAccountToken"]["audience"] == "weightsync"
    if role == "engine":
        assert spec["readinessGates"] == [{"conditionType": "weightsync.io/WeightsCurrent"}]
        (layouts,), (engine,) = rest, spec["containers"]
        for container in (layouts, engine):
            assert {"name": "PYTHONPATH", "value": "/dev/weightsync/python"} in container["env"]
        assert layouts["image"] == engine["image"]
