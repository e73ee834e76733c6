"""The alerts: each fires when it should, has a runbook, and is tested. promtool is Prometheus' own judge."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.conftest import unavailable
from tools.setup import prometheus
from tools.setup.errors import SetupError

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "charts/weightsync/files/alerts.yaml"
CASES = Path(__file__).with_name("alerts.test.yaml")


@pytest.fixture(scope="module")
def promtool() -> Path:
    """The program; the test is unavailable where it cannot be had."""
    try:
        return prometheus.programs()["promtool"]
    except SetupError as error:
        unavailable(f"promtool cannot be set up: {error}")


def names() -> list[str]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_the_rules(promtool: Path) -> None:
    """Every expression and template is well-formed."""
    run(promtool, "check", "rules", ALERTS)


def test_each_alert_fires_when_it_should_and_not_before(promtool: Path, tmp_path: Path) -> None:
    """alerts.test.yaml, with the rules beside it."""
    for file in (ALERTS, CASES):
        (tmp_path / file.name).write_text(file.read_text())
    run(promtool, "test", "rules", tmp_path / CASES.name)


def test_no_alert_is_without_a_case_that_makes_it_fire() -> None:
    """So that none is added untested."""
    tests = yaml.safe_load(CASES.read_text())["tests"]
    fired = {one["alertname"] for test in tests for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert fired == set(names())


def test_each_alert_has_its_runbook() -> None:
    """docs/runbooks.md has a section of the alert's name, and none of an alert that is not there."""
    page = (ROOT / "docs/runbooks.md").read_text()
    assert re.findall(r"^## (\S+)$", page, re.MULTILINE) == names()
