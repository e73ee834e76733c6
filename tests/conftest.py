"""Fixtures that every test may use: the clusters. And rules for all: in CI nothing is skipped; who runs what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from tests import sharing
from tools.cluster import light, node
from tools.cluster.errors import ClusterError
from tools.setup.errors import SetupError
from tools.world.nursery import Forked
from tools.world.world import World

ROOT = Path(__file__).resolve().parents[1]
# Child processes of tests find the packages where pytest finds them.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [*(str(ROOT / part) for part in (".", "sdk", "operator", "agent", "cli", "examples")),
     *filter(None, [os.environ.get("PYTHONPATH")])]
)  # fmt: skip


World.child = Forked  # imports are most of what the programs of a small world cost

# A machine that tests in several processes may take long over one example: time is no property of any.
settings.register_profile("weightsync", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("weightsync")


@dataclass(frozen=True)
class NodeCluster:
    """A cluster that runs pods. `local`: it is this machine's node, so that images can be loaded into it."""

    kubeconfig: Path
    local: bool


def in_ci() -> bool:
    """Whether skipping is forbidden."""
    return bool(os.environ.get("CI"))


def unavailable(reason: str) -> NoReturn:
    """Fail in CI, skip aloud elsewhere."""
    if in_ci():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failure in a world that outlives the test comes with what its processes said: their logs are removed."""
    result: Any = yield
    report = result.get_result()
    if report.failed:
        report.sections += [(f"world {world.folder.name}", world.tails()) for world in World.running]


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


@pytest.fixture(scope="session")
def node_cluster() -> Iterator[NodeCluster]:
    """A cluster with a real node: that of KUBECONFIG, else this machine's, which ends again if it was started here.

    Mark the tests `node`.
    """
    given = os.environ.get("KUBECONFIG")
    if given and Path(given) != node.kubeconfig_path():
        yield NodeCluster(Path(given), local=False)
        return
    was_running = node.status().ready
    try:
        kubeconfig = node.up().kubeconfig
    except (ClusterError, SetupError) as error:
        unavailable(f"the local node cannot be started: {error}")
    if kubeconfig is None:
        unavailable("the local node ended right after its start; `python3 tools/cluster status` says what runs")
    yield NodeCluster(kubeconfig, local=True)
    if not was_running:
        node.down()


@pytest.fixture(scope="module")
def node_may_be_ended() -> None:
    """Leave to end this machine's node: always in CI; elsewhere only while none runs, since it may be in use."""
    if in_ci():
        return
    if os.geteuid() != 0:
        pytest.skip("the local node needs root")
    if node.status().ready:
        pytest.skip("the local node runs, and this test would end it: `make cluster-down` first")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long ones first where several processes share the tests."""
    scattered = sharing.scattered(items)
    if scattered:
        raise pytest.UsageError(f"tests marked `node` must be in its unit, see tests/sharing.py: {scattered[0]}")
    if hasattr(config, "workerinput"):
        items[:] = sharing.ordered(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means."""
    return sharing.processes()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Ours, unless another way of sharing out is asked for by `--dist`."""
    return sharing.scheduler(config, log) if config.getoption("dist") == "load" else None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skipped test is a failed run where CI is set."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = len(reporter.stats.get("skipped", [])) if reporter is not None else 0
    if reporter is not None and in_ci() and skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"CI is set and {skipped} tests were skipped: that fails the run", red=True)
