"""The PodMonitors as Prometheus gets them: of all pods' ports it takes the operator's and the agents', no more."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.build import scraping
from tests.build.charts import Helm, Json, named
from tests.build.questions import Prometheus
from tests.conftest import unavailable
from tools.setup import prometheus
from tools.setup.errors import SetupError
from tools.world.ports import Ports
from tools.world.processes import Child, wait

ROOT = Path(__file__).resolve().parents[2]
FLAGS = (
    "--set=agent.namespaces={rl,eval}", "--set=monitoring.podMonitor.enabled=true",
    "--api-versions=monitoring.coreos.com/v1/PodMonitor",
)  # fmt: skip


def running(namespace: str, name: str, template: Json, phase: str = "Running") -> Json:
    """The template as a pod with an address."""
    metadata = {"namespace": namespace, "name": name, "labels": template["metadata"]["labels"]}
    return {"metadata": metadata, "spec": template["spec"], "status": {"podIP": "127.0.0.1", "phase": phase}}


def pods(chart: Helm) -> list[Json]:
    """Of the chart, of the page for pod templates, and others."""
    operator = named(chart.objects(*FLAGS), "Deployment", "weightsync-operator")["spec"]["template"]
    page = (ROOT / "docs/agent-sidecar.md").read_text()
    blocks = re.findall(r"^```yaml\n(# (?:trainer|engine)-pod.yaml\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    trainer, engine = map(yaml.safe_load, blocks)
    other = {
        "name": "main",
        "image": "i",
        "ports": [{"name": "metrics", "containerPort": 8080}, {"containerPort": 81}],
    }
    stranger = {"metadata": {"labels": {"app": "stranger"}}, "spec": {"containers": [other]}}
    return [
        running("weightsync-system", "operator-a", operator),
        running("weightsync-system", "stranger", stranger),
        running("elsewhere", "operator-b", operator),
        running("rl", "trainer-0", trainer),
        running("eval", "rollout-0", engine),
        running("eval", "rollout-1", engine, phase="Succeeded"),
        running("rl", "stranger", stranger),
        running("elsewhere", "trainer-1", trainer),
    ]


@pytest.fixture(scope="module")
def found(chart: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that was told of those pods. Nothing answers at their addresses: it says that, too."""
    folder, ports = tmp_path_factory.mktemp("scraping"), Ports()
    address = f"127.0.0.1:{ports.take()}"
    try:
        program = prometheus.programs()["prometheus"]
    except SetupError as error:
        unavailable(f"Prometheus cannot be set up: {error}")
    monitors = [made for made in chart.objects(*FLAGS) if made["kind"] == "PodMonitor"]
    (folder / "targets.json").write_text(json.dumps(scraping.discovered(pods(chart))))
    config = yaml.safe_dump(scraping.config(monitors, str(folder / "targets.json")))
    (folder / "prometheus.yml").write_text(config.replace("30s", "1s"))
    command = [str(program), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    child = Child("prometheus", [*command, f"--web.listen-address={address}"], {}, folder / "prometheus.log")
    child.start()
    asked = Prometheus(address)
    wait("Prometheus", asked.ready, 30, [child])
    yield asked
    child.stop()
    ports.close()


def test_operators_and_agents_are_scraped_and_nothing_else(found: Prometheus) -> None:
    """By namespace, label and port's name; agents are init containers; what has ended is left alone."""
    wanted = {
        ("weightsync-system", "operator-a", "operator"),
        ("rl", "trainer-0", "weightsync-agent"),
        ("eval", "rollout-0", "weightsync-agent"),
    }
    wait("a scrape of each", lambda: set(found.up()) >= wanted, 15)
    assert set(found.up()) == wanted


def test_the_namespace_of_a_weightsync_stays_its_own(chart: Helm) -> None:
    """The operator's series carry it as a label, which the scrape's own must not replace."""
    monitors = [made for made in chart.objects(*FLAGS) if made["kind"] == "PodMonitor"]
    honored = {job["job_name"]: job["honor_labels"] for job in scraping.config(monitors, "t.json")["scrape_configs"]}
    assert honored == {
        "podMonitor/weightsync-system/weightsync-operator/0": True,
        "podMonitor/weightsync-system/weightsync-agent/0": False,
    }
