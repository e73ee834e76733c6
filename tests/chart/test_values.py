"""Every value of the chart: used by what is rendered, and refused with its name where it is wrong.

Each case is one leaf of values.yaml; all are set at once, since a rendering costs more than a comparison.
"""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.build.chart_values import ABLE, CASES, nested
from tests.build.charts import CHART, Helm, Json

ROOT = Path(__file__).resolve().parents[2]
# Maps that users fill: their keys are no values of the chart.
FREE = {"resources", "trainerResources", "engineResources", "env", "labels"}


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


@pytest.mark.parametrize("amount", ["much", "2K", "-1", "1.5.0Gi", "64 Gi", ""])
@pytest.mark.parametrize(
    "part", ["operator.resources", "agent.injection.engineResources", "agent.injection.trainerResources"]
)
def test_what_is_no_amount_is_refused_before_a_pod_is_made(chart: Helm, part: str, amount: str) -> None:
    """Admission would find an agent's only when a pod asks for one: then no pod of the namespace could be made."""
    done = chart.run("template", "weightsync", str(CHART), f"--set-string={part}.limits.memory={amount}")
    assert f"at '/{part.replace('.', '/')}/limits/memory'" in done.stderr


@pytest.mark.parametrize("amount", ["0", "1", "1.5Gi", "64Gi", "100m", "5e9", "12k", "500M"])
def test_what_is_an_amount_is_taken(chart: Helm, amount: str) -> None:
    """In Kubernetes' own words."""
    assert f"memory: {amount}" in chart.text(f"--set-string=operator.resources.limits.memory={amount}").replace(
        '"', ""
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param("image.repository", "reg.example/weightsync:1.0", id="a tag that would come twice"),
        pytest.param("image.repository", "reg.example/Team/weightsync", id="an image that no node could pull"),
        pytest.param("agent.injection.env.POD_UID", "x", id="what the agent knows itself by"),
        pytest.param("agent.injection.env.WEIGHTSYNC_ROLE", "engine", id="what the pod's label says"),
        pytest.param("operator.podLabels.app\\.kubernetes\\.io/name", "x", id="what the Deployment selects by"),
        pytest.param("operator.podSelector", "a=b=c", id="no selector"),
        pytest.param("operator.podSelector", "tier in rl", id="a selector without its brackets"),
        pytest.param("operator.topologyLabels", "{a,b,c,d,e,f,g,h,i}", id="more labels than plans carry"),
    ],
)
def test_what_would_break_later_is_refused_now(chart: Helm, path: str, value: str) -> None:
    """Before anything is installed, by the name of the value."""
    done = chart.run("template", "weightsync", str(CHART), f"--set={path}={value}")
    where = "/" + "/".join(path.split(".")[:2])
    assert done.returncode != 0
    assert f"- at '{where}" in done.stderr


@pytest.mark.parametrize(
    "selector",
    [
        "weightsync.io/inject",
        "!old",
        "app=rollout, tier!=a,x==y",
        "a in (b, c),d notin (e)",
        "generation>3",
        "empty=",
    ],
)
def test_a_selector_is_taken(chart: Helm, selector: str) -> None:
    """In any of the forms that the API server reads."""
    text = chart.text(f"--set-json=operator.podSelector={json.dumps(selector)}")
    assert f"WEIGHTSYNC_OPERATOR_POD_SELECTOR, value: {json.dumps(selector)}" in text


@pytest.mark.parametrize("repository", ["weightsync", "registry:5000/team/weight-sync", "ghcr.io/a/b_c.d"])
def test_an_images_place_is_taken(chart: Helm, repository: str) -> None:
    """With a registry's port, or without a registry."""
    assert f'image: "{repository}:0.1.0"' in chart.text(f"--set=image.repository={repository}")


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
