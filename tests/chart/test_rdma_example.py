"""examples/kubernetes/rdma: what the cluster of guests is given as well."""

from pathlib import Path

import yaml

from tests.build.chart_values import ABLE
from tests.build.charts import Helm
from weightsync.api.v1alpha1.weightsync import WeightSyncSpec

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "kubernetes" / "rdma"
RESOURCE = "rdma/hca_shared_devices_a"


def test_trainers_and_engines_agents_ask_for_a_device(chart: Helm) -> None:
    """The values fit the chart, and each agent that is injected has the resource as a limit."""
    text = chart.text(f"--values={EXAMPLE / 'values.yaml'}", "--set=agent.namespaces={rl}", *ABLE)
    assert text.count(f'"{RESOURCE}": "1"') == 2


def test_its_weightsync_allows_rdma_alone() -> None:
    """A valid one."""
    spec = WeightSyncSpec.model_validate(yaml.safe_load((EXAMPLE / "weightsync.yaml").read_text())["spec"])
    assert spec.transfer.protocol == "RDMA"
