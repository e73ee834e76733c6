"""The examples, as `kubectl apply -k` would send them: taken by a real API server, with no unknown field."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.build.api import GROUP, Api, Json
from tests.integration.operator.conftest import ROOT
from weightsync_agent.settings import Settings

EXAMPLES = ROOT / "examples" / "kubernetes"
KUBECTL = Path(sys.executable).parent / "kubectl"
WORKLOADS, GROUPS = {"Deployment", "StatefulSet"}, "LeaderWorkerSet"
PATHS = {
    "v1/Service": "/api/v1/namespaces/{}/services",
    "v1/ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "apps/v1/Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "apps/v1/StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "v1/Pod": "/api/v1/namespaces/{}/pods",
    "weightsync.io/v1alpha1/WeightSync": GROUP + "/namespaces/{}/weightsyncs",
}

pytestmark = pytest.mark.apiserver


def text(name: str) -> str:
    """What kustomize makes of an example."""
    made = subprocess.run([KUBECTL, "kustomize", EXAMPLES / name], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return made.stdout


def built(name: str) -> list[Json]:
    """The same, parsed."""
    return [document for document in yaml.safe_load_all(text(name)) if document]


def group_template(document: Json) -> Json | None:
    """The pod template of a LeaderWorkerSet, which the server of the tests does not know."""
    return document["spec"]["leaderWorkerTemplate"]["workerTemplate"] if document["kind"] == GROUPS else None


def pods(name: str) -> dict[str, Any]:
    """The pods' specs of an example's workloads, by name."""
    made = {each["metadata"]["name"]: each.get("spec", {}).get("template") or group_template(each)
            for each in built(name) if each["kind"] in {*WORKLOADS, GROUPS}}  # fmt: skip
    return {name: template["spec"] for name, template in made.items() if template is not None}


@pytest.mark.parametrize("name", sorted(path.parent.name for path in EXAMPLES.glob("*/kustomization.yaml")))
def test_the_server_takes_an_example_as_it_stands(api: Api, name: str) -> None:
    """Every object of it, checked strictly."""
    documents = built(name)
    wanted = {GROUPS} if name == "sglang-pods" else WORKLOADS
    assert {each["kind"] for each in documents} >= {*wanted, "WeightSync"}
    for document in documents:
        template = group_template(document)
        each = document
        if template is not None:
            metadata = {"name": document["metadata"]["name"], **template["metadata"]}
            each = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        path = PATHS[f"{each['apiVersion']}/{each['kind']}"].format("default")
        answer = api.call("POST", f"{path}?dryRun=All&fieldValidation=Strict", each)
        assert answer.status == 201, f"{each['kind']} {each['metadata']['name']}: {answer.message}"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/weightsync.yaml")), ids=lambda path: path.parent.name)
def test_the_server_takes_every_weightsync(api: Api, path: Path) -> None:
    """Also of a folder that is no kustomization, but values of the chart and a WeightSync."""
    made = yaml.safe_load(path.read_text(encoding="utf-8"))
    answer = api.call("POST", f"{GROUP}/namespaces/default/weightsyncs?dryRun=All&fieldValidation=Strict", made)
    assert answer.status == 201, answer.message


def test_an_engines_programs_are_made_by_its_own_sglang_before_it_starts() -> None:
    """Agent, then layouts, then the engine: the same image, model and sizes; every volume that is mounted exists."""
    for spec in pods("sglang").values():
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in spec["initContainers"] + spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    spec = pods("sglang")["rollout"]
    agent, layouts = spec["initContainers"]
    (engine,) = spec["containers"]
    assert (agent["restartPolicy"], "restartPolicy" in layouts) == ("Always", False)
    assert layouts["image"] == engine["image"] != agent["image"]
    told = dict(zip(layouts["args"][:-1:2], layouts["args"][1::2], strict=True))
    assert layouts["args"][-1] == "--no-cache"  # it may have no home
    assert told["--out"] == "/dev/weightsync/layouts"
    assert {f"--model-path={told['--model']}", f"--tp={told['--tp']}"} <= set(engine["args"])
    for container in (layouts, engine):
        assert {"name": "PYTHONPATH", "value": "/dev/weightsync/python"} in container["env"]


def test_every_pod_of_a_group_knows_its_leader_and_its_node() -> None:
    """Agent and engine alike: by what the LeaderWorkerSet says of the pod, and before any pod is Ready."""
    (group,) = (each for each in built("sglang-pods") if each["kind"] == GROUPS)
    assert group["spec"]["startupPolicy"] == "LeaderCreated"
    size = group["spec"]["leaderWorkerTemplate"]["size"]
    spec = pods("sglang-pods")["rollout"]
    agent, layouts = spec["initContainers"]
    (engine,) = spec["containers"]
    index = {"fieldRef": {"fieldPath": "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"}}
    assert {"name": "WEIGHTSYNC_LEADER", "value": "$(LWS_LEADER_ADDRESS)"} in agent["env"]
    assert {"name": "WEIGHTSYNC_NODE_RANK", "valueFrom": index} in agent["env"]
    assert {"name": "NODE_RANK", "valueFrom": index} in engine["env"]
    tp = layouts["args"][layouts["args"].index("--tp") + 1]
    assert {f"--tp={tp}", f"--nnodes={size}", "--node-rank=$(NODE_RANK)"} <= set(engine["args"])
    assert int(tp) == size * int(engine["resources"]["limits"]["nvidia.com/gpu"])
    names = {variable["name"] for variable in agent["env"]}
    settings = {name for name in names if name.startswith("WEIGHTSYNC_")}
    known = {f"WEIGHTSYNC_{field.upper()}" for field in Settings.model_fields}
    assert settings <= known


# What admission puts into a pod, by the field of its spec; its containers keep all but their mounts.
INJECTED = ("serviceAccountName", "automountServiceAccountToken", "readinessGates", "initContainers", "volumes")


def test_where_agents_are_injected_a_label_is_all_that_is_written() -> None:
    """The two examples run the same job: without what injection adds the one's pods are the other's."""
    plain = {(each["kind"], each["metadata"]["name"]): each for each in built("base")}
    for each in built("injected"):
        wanted = plain.pop((each["kind"], each["metadata"]["name"]))
        template = wanted["spec"].get("template")
        if template is not None:
            role = each["spec"]["template"]["metadata"]["labels"].pop("weightsync.io/inject")
            assert role == {"trainer": "trainer", "rollout": "engine"}[each["metadata"]["name"]]
            for field in INJECTED:
                template["spec"].pop(field, None)
            for container in template["spec"]["containers"]:
                container.pop("volumeMounts")
                for variable in container["env"]:
                    if variable["name"] == "PYTHONPATH":
                        variable["value"] = variable["value"].removeprefix("/dev/weightsync/python:")
        assert each == wanted
    assert not plain


def test_the_quickstarts_command_names_the_users_image() -> None:
    """docs/quickstart.md: what it writes into the manifests on their way to the cluster."""
    (word,) = re.findall(r"\| sed '([^']+)'", (ROOT / "docs/quickstart.md").read_text())
    changed = subprocess.run(["sed", word], input=text("injected"), capture_output=True, text=True, check=True).stdout
    images = re.findall(r"image: (\S+)", changed)
    assert set(images) == {"PREFIX/weightsync-example:dev"}
    assert len(images) == 2
