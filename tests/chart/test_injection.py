"""The agent put into pods by admission, on a real API server: what a pod with the label becomes, and what is refused.

Pods are created as trials: nothing runs, admission and validation are the API server's own.
"""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.build.api import Answer, Api, eventually
from tests.build.charts import Helm, Json, named
from tools.cluster.light import LightCluster

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "injection"
ABLE = "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
API_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
VALUES = (
    f"--set=agent.namespaces={{{NAMESPACE}}}", "--set=crds.install=false", "--set=agent.injection.ipcLock=true",
    "--set=agent.injection.volumeSizeLimit=4Gi", "--set-string=agent.injection.env.WEIGHTSYNC_STALL_SECONDS=7",
    "--set=agent.injection.enginePort=31000", "--set=agent.injection.engineResources.limits.rdma/hca=1",
    "--set-json=agent.injection.resourceClaims=[{\"name\":\"nic\",\"resourceClaimTemplateName\":\"rdma\"}]",
    "--set-json=imagePullSecrets=[{\"name\":\"pull-a\"},{\"name\":\"pull-b\"}]",
)  # fmt: skip


class Place:
    """A namespace where pods with the label get an agent."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.pods = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"

    def ask(self, pod: Json) -> Answer:
        """Create it, as a trial."""
        return self.api.call("POST", self.pods, pod)

    def made(self, pod: Json) -> Json:
        """What the API server would keep."""
        answer = self.ask(pod)
        assert answer.status == 201, answer.message
        return answer.body


@pytest.fixture(scope="module")
def place(light_cluster: LightCluster, chart: Helm) -> Iterator[Place]:
    """The chart's two policies about the label, at work."""
    admin = light_cluster.admin
    api = Api(light_cluster.url, light_cluster.authority, (admin.certificate, admin.key))
    api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    made = [
        (f"{POLICIES}/{PLURALS[one['kind']]}", one)
        for one in chart.objects(ABLE, *VALUES)
        if one["kind"] in PLURALS and one["metadata"]["name"] in ("weightsync-inject", "weightsync-asking")
    ]
    assert len(made) == 4
    for path, one in made:
        api.create(path, one)
    found = Place(api)
    eventually("the policies act", lambda: found.ask(pod("driver")).status == 422 or None)
    eventually("agents are injected", lambda: found.ask(pod("trainer")).status == 201 or None)
    yield found
    for path, one in reversed(made):
        api.call("DELETE", f"{path}/{one['metadata']['name']}")


def pod(role: str | None, **spec: Any) -> Json:
    """A pod that asks for an agent, as a user writes it."""
    labels = {} if role is None else {"weightsync.io/inject": role}
    containers = [{"name": "main", "image": "user/image:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": labels},
        "spec": {"containers": containers} | spec,
    }


def by_name(things: list[Json]) -> dict[str, Json]:
    return {thing["name"]: thing for thing in things}


def mounts(container: Json) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}


def test_a_trainer_gets_an_agent_volumes_and_the_account(place: Place) -> None:
    """One sidecar, before everything else; the shared folder in every container; no gate, no search path."""
    spec = place.made(pod("trainer"))["spec"]
    (agent,) = spec["initContainers"]
    environment = {one["name"]: one.get("value") for one in agent["env"]}
    assert agent["name"] == "weightsync-agent"
    assert agent["restartPolicy"] == "Always"
    assert environment["WEIGHTSYNC_ROLE"] == "trainer"
    assert environment["WEIGHTSYNC_STALL_SECONDS"] == "7"
    assert "WEIGHTSYNC_ENGINE_URL" not in environment
    assert agent["ports"][0]["containerPort"] == 8960
    assert agent["startupProbe"]["failureThreshold"] == 120
    assert mounts(agent) == {
        "/dev/weightsync": "weightsync",
        "/var/run/secrets/weightsync": "weightsync-token",
        API_TOKEN: "weightsync-api",
    }  # fmt: skip
    assert mounts(spec["containers"][0]) == {"/dev/weightsync": "weightsync"}
    volumes = by_name(spec["volumes"])
    assert volumes["weightsync"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}
    (token,) = volumes["weightsync-token"]["projected"]["sources"]
    assert token["serviceAccountToken"] == {"audience": "weightsync", "expirationSeconds": 3600, "path": "token"}
    assert spec["serviceAccountName"] == "weightsync-agent"
    assert spec["automountServiceAccountToken"] is False
    assert "readinessGates" not in spec
    assert "env" not in spec["containers"][0]


def test_an_engine_gets_a_gate_the_hooks_path_and_its_port(place: Place) -> None:
    """The port comes from the values; devices and claims go to the agent."""
    spec = place.made(pod("engine"))["spec"]
    (agent,) = spec["initContainers"]
    assert {"name": "WEIGHTSYNC_ENGINE_URL", "value": "http://127.0.0.1:31000"} in agent["env"]
    assert spec["readinessGates"] == [{"conditionType": "weightsync.io/WeightsCurrent"}]
    assert spec["containers"][0]["env"] == [{"name": "PYTHONPATH", "value": "/dev/weightsync/python"}]
    assert agent["resources"]["limits"] == {"memory": "2Gi", "rdma/hca": "1"}
    assert agent["resources"]["claims"] == [{"name": "nic"}]
    assert spec["resourceClaims"] == [{"name": "nic", "resourceClaimTemplateName": "rdma"}]


@pytest.mark.parametrize("role", ["trainer", "engine"])
def test_a_pod_says_how_much_memory_its_agent_takes(place: Place, role: str) -> None:
    """In place of the value's, as request and limit; what else stands in the values stays."""
    wanted = pod(role)
    wanted["metadata"]["annotations"] = {"weightsync.io/agent-memory": "160Gi"}
    (agent,) = place.made(wanted)["spec"]["initContainers"]
    assert agent["resources"]["requests"]["memory"] == agent["resources"]["limits"]["memory"] == "160Gi"
    assert agent["resources"]["requests"]["cpu"] == "1"
    assert agent["resources"]["limits"].get("rdma/hca") == ("1" if role == "engine" else None)


@pytest.mark.parametrize(
    ("own", "found"),
    [
        pytest.param(None, ["pull-a", "pull-b"], id="none of its own"),
        pytest.param(["mine"], ["mine", "pull-a", "pull-b"], id="one of its own"),
        pytest.param(["pull-b"], ["pull-b", "pull-a"], id="one of these"),
    ],
)
def test_the_agents_image_can_be_pulled(place: Place, own: list[str] | None, found: list[str]) -> None:
    """By the values' secrets: the account's are not looked at any more when the pod gets it."""
    wanted = pod("trainer", **({"imagePullSecrets": [{"name": name} for name in own]} if own else {}))
    assert [one["name"] for one in place.made(wanted)["spec"]["imagePullSecrets"]] == found


def test_a_pod_of_the_nodes_network_can_have_an_agent(place: Place) -> None:
    """The agent's port is then the node's, which the API server asks to be said."""
    (agent,) = place.made(pod("engine", hostNetwork=True))["spec"]["initContainers"]
    assert agent["ports"][0]["hostPort"] == agent["ports"][0]["containerPort"] == 8960


@pytest.mark.parametrize("role", ["trainer", "engine"])
def test_the_snippet_for_pod_templates_is_what_is_injected(place: Place, role: str) -> None:
    """docs/agent-sidecar.md: the same agent, but for what these values say."""
    page = (ROOT / "docs/agent-sidecar.md").read_text()
    (block,) = re.findall(rf"^```yaml\n(# {role}-pod.yaml\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    template = yaml.safe_load(block)
    template["metadata"].pop("namespace", None)
    documented, injected = place.made(template)["spec"], place.made(pod(role))["spec"]
    (snippet, *_), (agent,) = documented["initContainers"], injected["initContainers"]
    for part in ("command", "restartPolicy", "ports", "startupProbe", "livenessProbe"):
        assert snippet[part] == agent[part], part
    assert mounts(snippet) == mounts(agent)
    agent["securityContext"]["capabilities"].pop("add")
    agent["securityContext"].pop("runAsUser")  # with it, as test_the_agent_is_confined tells
    assert snippet["securityContext"] == agent["securityContext"] | {"runAsNonRoot": True}
    own = {one["name"] for one in agent["env"]} - {"WEIGHTSYNC_LOG_LEVEL", "WEIGHTSYNC_STALL_SECONDS"}
    assert {one["name"] for one in snippet["env"]} == own
    assert documented["serviceAccountName"] == injected["serviceAccountName"]
    assert documented.get("readinessGates") == injected.get("readinessGates")
    tokens = ("weightsync-token", "weightsync-api")
    both = [by_name(spec["volumes"]) for spec in (documented, injected)]
    assert [both[0][name] for name in tokens] == [both[1][name] for name in tokens]


def test_the_agent_is_confined(place: Place) -> None:
    """Nothing writable but the volume, no capability but the one that was asked for, which counts for root alone."""
    (agent,) = place.made(pod("engine"))["spec"]["initContainers"]
    assert agent["securityContext"] == {
        "runAsUser": 0, "runAsNonRoot": False, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"}, "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }  # fmt: skip


def test_what_the_user_wrote_stays(place: Place) -> None:
    """Further containers, mounts, gates, init containers, volumes; the search path is put before the user's."""
    wanted = pod(
        "engine",
        initContainers=[{"name": "fetch", "image": "user/fetch:1"}],
        readinessGates=[{"conditionType": "user.test/gate"}],
        volumes=[{"name": "model", "emptyDir": {}}],
    )
    wanted["metadata"]["annotations"] = {"weightsync.io/engine-port": "8000"}
    wanted["spec"]["containers"] = [
        {"name": "log", "image": "i", "volumeMounts": [{"name": "weightsync", "mountPath": "/dev/weightsync"}]},
        {
            "name": "engine", "image": "i",
            "env": [{"name": "A", "value": "1"}, {"name": "PYTHONPATH", "value": "/x"}],
            "volumeMounts": [{"name": "model", "mountPath": "/model"}],
        },
    ]  # fmt: skip
    spec = place.made(wanted)["spec"]
    log, engine = spec["containers"]
    assert [one["name"] for one in spec["initContainers"]] == ["weightsync-agent", "fetch"]
    assert mounts(spec["initContainers"][1]) == {}
    assert [gate["conditionType"] for gate in spec["readinessGates"]] == [
        "user.test/gate",
        "weightsync.io/WeightsCurrent",
    ]
    assert mounts(log) == {"/dev/weightsync": "weightsync"}
    assert mounts(engine) == {"/model": "model", "/dev/weightsync": "weightsync"}
    assert engine["env"] == [
        {"name": "A", "value": "1"},
        {"name": "PYTHONPATH", "value": "/dev/weightsync/python:/x"},
    ]
    assert {"name": "WEIGHTSYNC_ENGINE_URL", "value": "http://127.0.0.1:8000"} in spec["initContainers"][0]["env"]


def test_the_init_container_of_the_page_is_taken_after_the_agent(place: Place) -> None:
    """docs/install.md: what writes copy programs names the volume that injection adds."""
    (block,) = re.findall(r"^```yaml\n(initContainers:.*?)^```", (ROOT / "docs/install.md").read_text(), re.M | re.S)
    spec = place.made(pod("engine", **yaml.safe_load(block)))["spec"]
    assert [one["name"] for one in spec["initContainers"]] == ["weightsync-agent", "layouts"]
    assert mounts(spec["initContainers"][1]) == {"/dev/weightsync": "weightsync"}


def test_the_other_containers_keep_no_token_of_the_api_server(place: Place) -> None:
    """The namespace's default account was filled in with its token, which goes: the agent's rights stay its own."""
    wanted = pod("trainer", serviceAccountName="default", volumes=[{"name": "kube-api-access-x", "emptyDir": {}}])
    token = {"name": "kube-api-access-x", "mountPath": API_TOKEN, "readOnly": True}
    other = {"name": "kube-api-access-x", "mountPath": "/other"}
    wanted["spec"]["initContainers"] = [{"name": "fetch", "image": "i", "volumeMounts": [token]}]
    wanted["spec"]["containers"] = [
        {"name": "a", "image": "i", "volumeMounts": [token, other]},
        {"name": "b", "image": "i", "volumeMounts": [other]},
    ]
    spec = place.made(wanted)["spec"]
    assert API_TOKEN not in {path for one in spec["containers"] for path in mounts(one)}
    assert mounts(spec["containers"][0]) == {"/other": "kube-api-access-x", "/dev/weightsync": "weightsync"}
    assert API_TOKEN not in mounts(by_name(spec["initContainers"])["fetch"])


def test_a_pod_that_has_an_agent_is_left_alone(place: Place) -> None:
    """A template written by hand may carry the label, for the network policy."""
    wanted = pod("engine", serviceAccountName="weightsync-agent")
    wanted["spec"]["initContainers"] = [
        {"name": "weightsync-agent", "image": "own/agent:1", "restartPolicy": "Always"}
    ]
    spec = place.made(wanted)["spec"]
    assert [one["image"] for one in spec["initContainers"]] == ["own/agent:1"]
    assert "readinessGates" not in spec


def test_a_pod_without_the_label_is_not_looked_at(place: Place) -> None:
    """Nothing is added to it."""
    spec = place.made(pod(None))["spec"]
    assert "initContainers" not in spec
    assert "volumes" not in spec


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"labels": {"weightsync.io/inject": "driver"}}, "driver: write trainer or engine", id="a role"),
        pytest.param({"serviceAccountName": "mine"}, "out, or write weightsync-agent", id="an account"),
        pytest.param({"annotations": {"weightsync.io/engine-port": "x"}}, "write the number on which", id="a port"),
        pytest.param({"annotations": {"weightsync.io/engine-port": "65536"}}, "the number", id="no such port"),
        pytest.param({"annotations": {"weightsync.io/agent-memory": "much"}}, "what the agent of this", id="a word"),
        pytest.param({"annotations": {"weightsync.io/agent-memory": "0"}}, "what the agent of this", id="no memory"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_at_creation(place: Place, change: Json, said: str) -> None:
    """With a sentence that says what to write."""
    wanted = copy.deepcopy(pod("engine"))
    for key, value in change.items():
        wanted["spec" if key == "serviceAccountName" else "metadata"][key] = value
    answer = place.ask(wanted)
    assert answer.status == 422
    assert said in answer.message


def test_without_the_kind_the_chart_injects_nothing_and_says_how_else(chart: Helm) -> None:
    """Before Kubernetes 1.36: Auto leaves it out, Enabled fails with a sentence, and the label alone is refused."""
    flags = ("--set=agent.namespaces={rl}",)
    assert "MutatingAdmissionPolicy" not in chart.text(*flags)
    done = chart.run("template", "x", str(chart.path), *flags, "--set=agent.injection.mode=Enabled")
    assert "write Auto, and add the agent to pod templates" in done.stderr
    assert "MutatingAdmissionPolicy" not in chart.text(ABLE, *flags, "--set=agent.injection.mode=Disabled")
    asking = named(chart.objects(*flags), "ValidatingAdmissionPolicy", "weightsync-asking")["spec"]
    assert "does not inject it" in asking["validations"][1]["message"]
