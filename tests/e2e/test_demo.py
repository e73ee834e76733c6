"""The main job on a real node: real agents with real Mooncake in real pods under the kubelet.

The demo as a user runs it. Its bounds in seconds are not asserted here: machines that run tests are shared.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NodeCluster, unavailable

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
STEPS = 40


@pytest.fixture(scope="module")
def report(node_cluster: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The demo's report. Its exit status is not looked at, since it also stands for bounds in seconds."""
    if not node_cluster.local and not os.environ.get("IMAGE_PREFIX"):
        unavailable("KUBECONFIG is set: say where images are pulled from, by IMAGE_PREFIX")
    path = tmp_path_factory.mktemp("demo") / "report.json"
    command = [
        sys.executable, "tools/demo", "--steps", str(STEPS), "--namespace", "weightsync-e2e", "--report", str(path),
    ]  # fmt: skip
    environment = {**os.environ, "KUBECONFIG": str(node_cluster.kubeconfig)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if not path.exists():
        pytest.fail(f"the demo gave no report:\n{run.stdout[-3000:]}\n{run.stderr[-6000:]}", pytrace=False)
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_every_step_is_published(report: dict[str, Any]) -> None:
    """One version a step, none lost."""
    assert report["versions_published"] == STEPS


def test_every_engine_ends_at_the_last_version_read_back_from_its_parameters(report: dict[str, Any]) -> None:
    """Four engines after scaling from two and losing one; bytes equal to what was verified."""
    versions = {engine["version"] for engine in report["engines"]}
    assert len(report["engines"]) == 4
    assert len(versions) == 1
    assert versions.pop().endswith(f".{STEPS}")
    assert all(engine["digest_ok"] for engine in report["engines"])


def test_engines_join_with_no_one_acting(report: dict[str, Any]) -> None:
    """Two by scaling, one in place of the one that was deleted in the middle of a sync."""
    assert len(report["joins"]) == 3


def test_the_reward_rises_by_what_is_published(report: dict[str, Any]) -> None:
    """Three tenths of what is possible; engines that get no weights gain nothing (tests/controls)."""
    first, possible = report["reward_first"], report["reward_max_possible"]
    assert report["reward_last"] >= first + 0.3 * (possible - first)


def test_no_answer_is_torn_or_stale(report: dict[str, Any]) -> None:
    """Every checked answer is what its version computes, span by span."""
    assert report["checked_answers"] >= 200
    assert report["distinguishable"] >= 0.5
    assert report["torn_answers"] == 0
    assert report["stale_answers"] == 0
