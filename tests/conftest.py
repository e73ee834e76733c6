"""Fixtures that every test may use: the clusters. And the rule that in CI nothing is skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tools.cluster import light
from tools.cluster.errors import ClusterError
from tools.setup.errors import SetupError


def in_ci() -> bool:
    """Whether skipping is forbidden."""
    return bool(os.environ.get("CI"))


@pytest.fixture(scope="session")
def light_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[light.LightCluster]:
    """etcd and a real API server, started for this run of the tests. Mark the tests `apiserver`."""
    folder = tmp_path_factory.mktemp("light") / "cluster"
    try:
        cluster = light.up(folder, bound_to_caller=True)
    except (ClusterError, SetupError) as error:
        unavailable(f"the light cluster cannot be started: {error}")
    yield cluster
    light.down(folder)


def unavailable(reason: str) -> None:
    """Fail in CI, skip aloud elsewhere."""
    if in_ci():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skipped test is a failed run where CI is set."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = len(reporter.stats.get("skipped", [])) if reporter is not None else 0
    if reporter is not None and in_ci() and skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"CI is set and {skipped} tests were skipped: that fails the run", red=True)
