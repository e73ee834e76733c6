"""All that the chart renders is taken by a real API server, strictly; what the documentation types, by helm."""

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.build.api import Api
from tests.build.chart_values import nested
from tests.build.charts import CHART, Helm, Json
from tools.cluster.light import LightCluster

ROOT = Path(__file__).resolve().parents[2]
NAMESPACES = ("weightsync-system", "taken")
PLACES = {
    "ServiceAccount": "/api/v1", "ConfigMap": "/api/v1", "Pod": "/api/v1", "Deployment": "/apis/apps/v1",
    "PodDisruptionBudget": "/apis/policy/v1", "NetworkPolicy": "/apis/networking.k8s.io/v1",
    "Role": "/apis/rbac.authorization.k8s.io/v1", "RoleBinding": "/apis/rbac.authorization.k8s.io/v1",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1", "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1",
    "PriorityClass": "/apis/scheduling.k8s.io/v1",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1",
    "MutatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1",
    "MutatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1",
}  # fmt: skip
PLURALS = {"NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses"}
VALUES = (
    "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy", "--set=crds.install=false",
    "--set=agent.namespaces={taken}", "--set=priorityClass.create=true", "--set=monitoring.dashboard.enabled=true",
    "--set=operator.topologyLabels={kubernetes.io/hostname}", "--set=agent.injection.ipcLock=true",
    '--set-json=networkPolicy.scrapers=[{"podSelector":{"matchLabels":{"app":"prometheus"}}}]',
    '--set-json=operator.tolerations=[{"key":"dedicated","operator":"Exists"}]',
)  # fmt: skip


@pytest.fixture(scope="module")
def api(light_cluster: LightCluster) -> Api:
    """With the namespaces that the objects go to."""
    admin = light_cluster.admin
    client = Api(light_cluster.url, light_cluster.authority, (admin.certificate, admin.key))
    for name in NAMESPACES:
        client.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return client


def place(made: Json) -> str:
    """Where it is created."""
    kind, namespace = made["kind"], made["metadata"].get("namespace")
    plural = PLURALS.get(kind, f"{kind.lower()}s".replace("policys", "policies"))
    return f"{PLACES[kind]}/{f'namespaces/{namespace}/' if namespace else ''}{plural}"


@pytest.mark.apiserver
@pytest.mark.timeout(120)
def test_the_api_server_takes_every_object(api: Api, chart: Helm) -> None:
    """As a trial, with strict validation: an unknown or misplaced field is an error, and so is a CEL expression's."""
    objects = [*chart.objects(*VALUES), *chart.hooks(*VALUES)]
    assert {one["kind"] for one in objects} == set(PLACES)
    for one in objects:
        answer = api.call("POST", f"{place(one)}?dryRun=All&fieldValidation=Strict", one)
        assert answer.status == 201, f"{one['kind']} {one['metadata']['name']}: {answer.message}"


@pytest.mark.apiserver
@pytest.mark.timeout(120)
def test_the_api_server_takes_what_every_value_brings(api: Api, chart: Helm, tmp_path: Path) -> None:
    """All set at once to something else than the default; namespaces are those that are there."""
    values = nested(0)
    values["operator"]["watchNamespaces"] = values["agent"]["namespaces"] = list(NAMESPACES)
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    flags = (f"--values={tmp_path / 'values.yaml'}", VALUES[0])
    for one in [*chart.objects(*flags), *chart.hooks(*flags)]:
        answer = api.call("POST", f"{place(one)}?dryRun=All&fieldValidation=Strict", one)
        assert answer.status == 201, f"{one['kind']} {one['metadata']['name']}: {answer.message}"


def typed() -> Iterator[tuple[str, list[str]]]:
    """Every helm command of the documentation that names the chart: page, words."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(r"^ *\$? ?(helm (?:install|upgrade|template) .*)$", text, re.MULTILINE):
            words = shlex.split(line)
            if "charts/weightsync" in words:
                yield str(page.relative_to(ROOT)), words


@pytest.mark.parametrize(("page", "words"), list(typed()), ids=[f"{page}-{n}" for n, (page, _) in enumerate(typed())])
def test_what_the_documentation_types_is_right(chart: Helm, page: str, words: list[str]) -> None:
    """Its values are the chart's, and of the right kind."""
    values = [word for flag, value in pairwise(words) for word in (flag, value)
              if "--set" in flag or flag == "--api-versions"]  # fmt: skip
    done = chart.run("template", "weightsync", str(CHART), *values)
    assert done.returncode == 0, f"{page}: {' '.join(words)}: {done.stderr}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples/kubernetes").glob("*/values.yaml")), ids=lambda path: path.parent.name
)
def test_the_values_of_an_example_are_right(chart: Helm, path: Path) -> None:
    """The chart takes them."""
    done = chart.run("template", "weightsync", str(CHART), f"--values={path}", VALUES[0], VALUES[2])
    assert done.returncode == 0, done.stderr
