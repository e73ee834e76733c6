"""A world with all that is measured: an operator, a trainer, engines, a joiner, and some that goes wrong."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from reference.checkpoint import initial_state, make_checkpoint
from tests.build.questions import Prometheus
from tests.build.small_model import CONFIG
from tests.conftest import unavailable
from tools.chaos.holds import Hold
from tools.chaos.striking import workers
from tools.cluster import light
from tools.cluster.errors import ClusterError
from tools.setup import prometheus
from tools.setup.errors import SetupError
from tools.world.cluster import CRDS, NAME, OURS, ApiServer, ClusterWorld
from tools.world.processes import Child, wait
from weightsync import Publisher, names

SCRAPE_SECONDS = 2
OUTCOME_SECONDS = 110.0  # twice the deadline and the grace of the plan below
TARGETS = "targets.json"  # of Prometheus
OPERATORS_OWN = re.compile(r'"port": (\d+).*serving health and metrics|serving health and metrics.*"port": (\d+)')


class Scraped(Prometheus):
    """The world and the Prometheus that scrapes it."""

    def __init__(self, world: ClusterWorld, address: str) -> None:
        super().__init__(address)
        self.world = world


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    """prometheus and promtool."""
    try:
        return prometheus.programs()
    except SetupError as error:
        unavailable(f"Prometheus cannot be set up: {error}")


@pytest.fixture(scope="module")
def scraped(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """The world after a few syncs, a failed publish, a join, and a transfer worker that was killed."""
    torch.set_num_threads(1)
    checkpoint = tmp_path_factory.mktemp("base")
    make_checkpoint(checkpoint, CONFIG, seed=0)
    folder = tmp_path_factory.mktemp("prometheus")
    try:
        cluster = light.up(tmp_path_factory.mktemp("light") / "cluster", bound_to_caller=True)
    except (ClusterError, SetupError) as error:
        unavailable(f"the light cluster cannot be started: {error}")
    try:
        plan = {"strategy": {"type": "Barrier", "deadlineSeconds": 45}}
        with ClusterWorld(cluster, plan, failpoints=True) as world:
            yield from _run(world, programs["prometheus"], checkpoint, folder)
    finally:
        light.down(cluster.folder)


def _run(world: ClusterWorld, program: Path, checkpoint: Path, folder: Path) -> Iterator[Scraped]:
    trainer = world.trainer("trainer-0")
    for name in ("engine-0", "engine-1"):
        world.engine(name, checkpoint)
    with Publisher(rank=0, world_size=1, directory=trainer.volume) as publisher:
        world.wait_for_engines(2)
        publisher.publish(initial_state(CONFIG, seed=1)).raise_on_failure(timeout=OUTCOME_SECONDS)
        scraped, found = _prometheus(world, program, folder)
        try:
            wait("the first scrape of all", lambda: sum(scraped.up().values()) == len(world.pods) + 1, 90, [found])
            _work(world, publisher, checkpoint, folder)
            yield scraped
        finally:
            found.stop()


def _work(world: ClusterWorld, publisher: Publisher, checkpoint: Path, folder: Path) -> None:
    """What the metrics are there for, good and bad: bytes that change, a dead worker, a failed publish, an engine
    that misses a version and gets it by a repair, one that joins and reads it from another.
    """
    Hold(world.failpoints("engine-0"), "worker-corrupt")
    os.kill(next(workers(world.pods["engine-1"].agent.pid)), signal.SIGKILL)
    # Whether every engine gets each version is another test's affair: on a busy machine one may be repaired instead.
    publisher.publish(initial_state(CONFIG, seed=2)).outcome(timeout=OUTCOME_SECONDS)
    publisher.publish({"unknown": torch.zeros(1)}).outcome(timeout=OUTCOME_SECONDS)
    world.pods["engine-1"].agent.kill(signal.SIGSTOP)
    last = publisher.publish(initial_state(CONFIG, seed=3)).outcome(timeout=OUTCOME_SECONDS)
    world.pods["engine-1"].agent.kill(signal.SIGCONT)
    assert last.version is not None, last.describe()
    assert {e.engine: e.outcome for e in last.engines}.get("engine-1") != "Current", last.describe()
    world.wait_for_version(world.pods["engine-1"], last.version.name, seconds=90)
    joiner = world.engine("engine-2", checkpoint)
    _name_targets(world, folder)
    world.wait_for_version(joiner, last.version.name, seconds=90)
    _relayed(world, publisher)
    _unreadable(world)
    server = ApiServer(world.cluster)
    server.kill()
    try:
        log = world.pods["trainer-0"].agent.log
        wait("an agent that misses the API server", lambda: "cannot be reached" in log.read_text(), 60)
    finally:
        server.start()


def _relayed(world: ClusterWorld, publisher: Publisher) -> None:
    """From now on engines pass versions on, one to the next: the trainer writes to one of them alone."""
    client, path = world.cluster.client, f"{OURS}/{names.PLURAL}/{NAME}"
    changed = client.get(path)
    changed["spec"]["transfer"]["relay"] = {"fanout": 1}
    status, text = client.call("PUT", path, changed)
    assert status == 200, text

    def passed_on() -> bool:  # the agents follow the changed plan some moments later
        publisher.publish(initial_state(CONFIG, seed=4)).outcome(timeout=OUTCOME_SECONDS)
        return any(world.metric(pod, "weightsync_agent_relayed_bytes_total") for pod in world.pods.values())

    wait("a version that is passed on", passed_on, 90)


def _unreadable(world: ClusterWorld) -> None:
    """A WeightSync that only the CRD of another release lets in: the operator's pass over it fails."""
    client, path = world.cluster.client, f"{CRDS}/weightsyncs.weightsync.io"
    crd = client.get(path)
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = {
        "type": "object", "x-kubernetes-preserve-unknown-fields": True,
    }  # fmt: skip
    status, text = client.call("PUT", path, crd)
    assert status == 200, text
    body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "later"}, "spec": {}}
    created = f"{OURS}/{names.PLURAL}"
    wait("the other CRD", lambda: client.call("POST", created, body)[0] == 201, 60)
    wait("a pass that fails", lambda: "pass failed" in world.operator.log.read_text(), 60, [world.operator])


def _name_targets(world: ClusterWorld, folder: Path) -> None:
    """The pods that there are now, for Prometheus to find; it looks again by itself."""
    targets = [
        {
            "targets": [pod.address],
            "labels": {"namespace": "world", "pod": pod.name, "container": "weightsync-agent"},
        }
        for pod in world.pods.values()
    ]
    fresh = folder / f"{TARGETS}.fresh"
    fresh.write_text(json.dumps(targets))
    fresh.replace(folder / TARGETS)


def _prometheus(world: ClusterWorld, program: Path, folder: Path) -> tuple[Scraped, Child]:
    """Scrapes operator and agents, with the labels that a PodMonitor gives."""
    address = f"127.0.0.1:{world.ports.take()}"
    found = OPERATORS_OWN.search(world.operator.log.read_text())
    assert found is not None, world.operator.tail()
    _name_targets(world, folder)
    own = {"namespace": "weightsync", "pod": "operator-0", "container": "operator"}
    jobs = [
        {"job_name": "agents", "file_sd_configs": [{"files": [str(folder / TARGETS)], "refresh_interval": "2s"}]},
        {
            "job_name": "operator",
            "honor_labels": True,
            "static_configs": [{"targets": [f"127.0.0.1:{found[1] or found[2]}"], "labels": own}],
        },
    ]
    timing = {"scrape_interval": f"{SCRAPE_SECONDS}s", "scrape_timeout": f"{SCRAPE_SECONDS}s"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"global": timing, "scrape_configs": jobs}))
    child = Child(
        "prometheus",
        [
            str(program), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ],
        {},
        folder / "prometheus.log",
    )  # fmt: skip
    scraped = Scraped(world, address)
    child.start()
    wait("Prometheus", scraped.ready, 30, [child])
    return scraped, child
