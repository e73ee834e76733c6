"""Every value of the chart: used by what is rendered, and refused with its name where it is wrong.

Each case is one leaf of values.yaml; all are set at once, since a rendering costs more than a comparison.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.build.charts import CHART, Helm, Json

ABLE = [
    f"--api-versions={kind}"
    for kind in (
        "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",
        "monitoring.coreos.com/v1/PodMonitor",
        "monitoring.coreos.com/v1/PrometheusRule",
    )
]
ROOT = Path(__file__).resolve().parents[2]
DIGEST = f"sha256:{'a' * 64}"
# Leaf -> (a value, what it brings into the manifests, a wrong value). None: any value is right, or what is rendered
# is looked at elsewhere.
CASES: dict[str, tuple[Any, str | None, Any]] = {
    "image.repository": ("reg.test/ws", "reg.test/ws", ""),
    "image.tag": ("v7", None, "a tag"),  # the digest decides
    "image.digest": (DIGEST, f"reg.test/ws@{DIGEST}", "sha256:12"),
    "image.pullPolicy": ("Always", "imagePullPolicy: Always", "Sometimes"),
    "imagePullSecrets": ([{"name": "pull-me"}], "name: pull-me", ["pull-me"]),
    "crds.install": (False, None, "no"),
    "rbac.aggregate": (False, None, "no"),
    "priorityClass.create": (True, "kind: PriorityClass", "yes"),
    "priorityClass.value": (4711, "value: 4711", 2000000000),
    "operator.replicas": (3, "replicas: 3", 99),
    "operator.watchNamespaces": (["seen"], 'value: "seen"', ["No_Name"]),
    "operator.podSelector": ("team=a", 'value: "team=a"', 7),
    "operator.topologyLabels": (["kubernetes.io/hostname"], "resources: [nodes]", ["a b"]),
    "operator.logLevel": ("debug", "LOG_LEVEL, value: debug", "loud"),
    "operator.logFormat": ("console", "value: console", "xml"),
    "operator.debounceSeconds": (0.5, 'value: "0.5"', 11),
    "operator.resyncSeconds": (77, 'value: "77"', 1),
    "operator.resources": ({"limits": {"memory": "513Mi"}}, "memory: 513Mi", {"limit": {}}),
    "operator.priorityClassName": ("high", "priorityClassName: high", 7),
    "operator.podAnnotations": ({"note": "here"}, "note: here", {"a": 1}),
    "operator.podLabels": ({"team": "weights"}, "team: weights", {"a": 1}),
    "operator.nodeSelector": ({"disk": "fast"}, "disk: fast", {"a": 1}),
    "operator.tolerations": ([{"key": "dedicated"}], "key: dedicated", ["dedicated"]),
    "operator.affinity": ({"nodeAffinity": {}}, "nodeAffinity: {}", "near"),
    "agent.namespaces": (["rl", "eval"], "namespace: eval", ["A"]),
    "agent.serviceAccount.create": (False, None, "no"),
    "agent.serviceAccount.name": ("carrier", "system:serviceaccount:rl:carrier", "No Name"),
    "agent.injection.mode": ("Enabled", "kind: MutatingAdmissionPolicy", "Always"),
    "agent.injection.logLevel": ("warning", 'value: "warning"', "loud"),
    "agent.injection.enginePort": (31234, '"31234"', 70000),
    "agent.injection.volumeSizeLimit": ("9Gi", 'sizeLimit: "9Gi"', "much"),
    "agent.injection.ipcLock": (True, '"IPC_LOCK"', "yes"),
    "agent.injection.resourceClaims": (
        [{"name": "nic", "resourceClaimName": "c"}], 'resourceClaimName: "c"', ["nic"],
    ),
    "agent.injection.env": ({"WEIGHTSYNC_TRANSPORT": "rdma"}, '"WEIGHTSYNC_TRANSPORT", value: "rdma"', {"a-b": "x"}),
    "agent.injection.trainerResources": ({"limits": {"memory": "33Gi"}}, '"memory": "33Gi"', {"limit": {}}),
    "agent.injection.engineResources": ({"limits": {"memory": "17Gi"}}, '"memory": "17Gi"', {"limit": {}}),
    "networkPolicy.enabled": (True, "endPort: 17000", "yes"),
    "networkPolicy.scrapers": ([{"podSelector": {"matchLabels": {"app": "prom"}}}], "app: prom", [{"pods": {}}]),
    "monitoring.podMonitor.enabled": (True, "kind: PodMonitor", "yes"),
    "monitoring.podMonitor.labels": ({"release": "prom-a"}, "release: prom-a", {"a": 1}),
    "monitoring.podMonitor.interval": ("13s", "interval: 13s", "often"),
    "monitoring.alerts.enabled": (True, "kind: PrometheusRule", "yes"),
    "monitoring.alerts.labels": ({"release": "prom-b"}, "release: prom-b", {"a": 1}),
    "monitoring.dashboard.enabled": (True, "weightsync.json:", "yes"),
    "monitoring.dashboard.labels": ({"grafana": "c"}, "grafana: c", {"a": 1}),
}  # fmt: skip
# Maps that users fill: their keys are no values of the chart.
FREE = {"resources", "trainerResources", "engineResources", "env", "labels"}


def nested(column: int) -> Json:
    """All cases' values of a column as one document of values."""
    document: Json = {}
    for path, case in CASES.items():
        place = document
        *folders, leaf = path.split(".")
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = case[column]
    return document


def leaves(values: Json, path: str = "") -> set[str]:
    """Dotted paths of all values."""
    found: set[str] = set()
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in FREE:
            found |= leaves(value, f"{path}{key}.")
        else:
            found.add(f"{path}{key}")
    return found


@pytest.fixture(scope="module")
def rendered(chart: Helm, tmp_path_factory: pytest.TempPathFactory) -> str:
    """With every value set to something else than its default."""
    return chart.text(f"--values={written(nested(0), tmp_path_factory)}", *ABLE)


@pytest.fixture(scope="module")
def refused(chart: Helm, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What helm says where every value is wrong."""
    path = written(nested(2), tmp_path_factory)
    done = chart.run("template", "weightsync", str(CHART), f"--values={path}")
    assert done.returncode != 0
    return done.stderr


def written(values: Json, factory: pytest.TempPathFactory) -> Path:
    path = factory.mktemp("values") / "values.yaml"
    path.write_text(json.dumps(values))
    return path


def test_every_value_has_a_case() -> None:
    """So that none is added that nothing uses."""
    assert leaves(yaml.safe_load((CHART / "values.yaml").read_text())) == set(CASES)


@pytest.mark.parametrize("path", [path for path, case in CASES.items() if case[1] is not None])
def test_it_is_used(rendered: str, chart: Helm, path: str) -> None:
    """It changes what is rendered."""
    brings = CASES[path][1]
    assert brings is not None
    assert brings in rendered


@pytest.mark.parametrize("path", CASES)
def test_a_wrong_one_is_refused_by_its_name(refused: str, path: str) -> None:
    """Helm says where it stands and what was wanted."""
    where = "/" + path.replace(".", "/")
    lines = [line for line in refused.splitlines() if line.strip().startswith("- at '") and where in line]
    assert lines, refused


def test_a_key_that_is_unknown_is_refused_in_every_part(chart: Helm, tmp_path: Path) -> None:
    """A typo is an error, not a default: in each object that the schema describes."""
    schema = json.loads((CHART / "values.schema.json").read_text())

    def with_typo(part: Json) -> Json:
        inner = {key: with_typo(one) for key, one in part["properties"].items() if "properties" in one}
        return inner | {"typo": 1}

    def count(part: Json) -> int:
        return 1 + sum(count(one) for one in part["properties"].values() if "properties" in one)

    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(with_typo(schema)))
    done = chart.run("template", "weightsync", str(CHART), f"--values={path}")
    assert done.stderr.count("additional properties 'typo' not allowed") == count(schema)


def test_switches_take_away_what_they_say(chart: Helm, rendered: str) -> None:
    """crds.install, rbac.aggregate, agent.serviceAccount.create: what false leaves out."""
    plain = chart.text("--set=agent.namespaces={rl}", "--set=networkPolicy.enabled=false")
    for word in ("kind: CustomResourceDefinition", "aggregate-to-view", "automountServiceAccountToken: false"):
        assert word in plain
        assert word not in rendered
    assert "kind: NetworkPolicy" not in plain


def test_a_tag_counts_where_there_is_no_digest(chart: Helm) -> None:
    """Else it is the chart's own version."""
    assert 'image: "weightsync:v7"' in chart.text("--set=image.tag=v7")
    assert 'image: "weightsync:0.1.0"' in chart.text()


def test_the_documentation_names_values_that_are_there() -> None:
    """Whatever stands in code marks and looks like a value of the chart is one, or a part of them."""
    parts = "image|crds|rbac|priorityClass|operator|agent|networkPolicy|monitoring"
    known = {".".join(path.split(".")[:end]) for path in CASES for end in range(1, 5)}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        named = re.findall(rf"`((?:{parts})\.[A-Za-z.]+)(?:=[^`]*)?`", page.read_text())
        assert set(named) <= known, page.name
