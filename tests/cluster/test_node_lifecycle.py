"""The local node: starting, starting again, recovering from a kill, ending without a trace.

These tests end the node that runs on this machine.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tools.cluster import control_groups, former, host, layout, node, policies, processes, remains

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(400)]

PODS = "/api/v1/namespaces/default/pods"
POD_SECONDS = 60.0


@pytest.fixture(scope="module", autouse=True)
def _own_node(node_may_be_ended: None) -> Iterator[None]:
    """No node before the first test and after the last one."""
    node.down()
    yield
    node.down()


# Worlds of pods, of other tests and of trials, come and go meanwhile: tools/world names what they make so.
WORLDS = re.compile(r"weightsync-world-|weightsync-\d+-\d+$|^ws[bv]\d")


def _apart(names: Iterable[str]) -> list[str]:
    """Without what worlds of pods make."""
    return sorted(name for name in names if not WORLDS.search(name))


def traces() -> dict[str, object]:
    """What a node could leave on a machine, apart from what the machine has of its own."""
    settings = {name: (Path("/proc/sys") / name).read_text() for name in former.SETTINGS}
    groups = Path("/sys/fs/cgroup").rglob("*")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "mounts": _apart(line.split()[4] for line in mounts),
        "interfaces": _apart(link["ifname"] for link in host.links()),
        "network namespaces": _apart(line.split()[0] for line in host.tool(["ip", "netns", "list"]).splitlines()),
        "rules": host.tool(["nft", "--stateless", "list", "ruleset"]),
        "shared folders": {str(path): sorted(path.glob("*")) for path in remains.SHARED_FOLDERS if path.exists()},
        "control groups": sorted(path for path in groups if path.is_dir() and layout.CGROUP in path.name),
        "hosts": Path("/etc/hosts").read_text(),
        "settings": settings,
        "left": str(remains.find(layout.node())),
    }


def run_pod(name: str, **spec: Any) -> None:
    """Run a pod and wait until it does."""
    client = node.client(layout.node())
    container = {"name": "main", "image": layout.PAUSE_IMAGE, **spec.pop("container", {})}
    body = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
    status, text = client.call("POST", PODS, {"apiVersion": "v1", "kind": "Pod", **body})
    assert status == HTTPStatus.CREATED, text
    limit = time.monotonic() + POD_SECONDS
    while (pod := client.get(f"{PODS}/{name}"))["status"]["phase"] != "Running":
        assert time.monotonic() < limit, f"pod {name} does not run: {pod['status']}"
        time.sleep(0.1)


def run_pod_with_mounts(name: str) -> None:
    """Run a pod that has a volume in memory and a port on the host: both leave traces when it is killed."""
    volume = {"name": "memory", "emptyDir": {"medium": "Memory"}}
    mounts = [{"name": "memory", "mountPath": "/memory"}]
    ports = [{"containerPort": 8080, "hostPort": 18080}]
    run_pod(name, volumes=[volume], container={"volumeMounts": mounts, "ports": ports})


def recorded() -> dict[str, processes.Record]:
    """The node's processes."""
    return processes.Keeper(layout.node().records).records()


def test_a_second_up_changes_nothing() -> None:
    """The same processes after the second call, and a ready node."""
    node.up()
    before = recorded()
    assert node.up().ready
    assert recorded() == before


def test_up_starts_over_what_a_kill_left() -> None:
    """After every process of the node was killed, pods included, `up` gives a ready node that runs pods."""
    node.up()
    run_pod_with_mounts("before")
    policies.start()
    place = layout.node()
    victims = [record.pid for record in recorded().values()]
    for pid in [*victims, *remains.shims(place), *control_groups.members()]:
        os.kill(pid, signal.SIGKILL)
    assert processes.wait_all_gone(victims, deadline_seconds=10) == []
    assert not node.status().ready
    left = remains.find(place)
    assert left.mounts
    assert left.interfaces
    assert left.host_port_rules
    assert left.policy_rules
    assert left.control_groups

    assert node.up().ready
    run_pod_with_mounts("after")
    assert policies.rules() == []


def test_down_leaves_nothing() -> None:
    """The machine has the mounts, interfaces, namespaces, tables and settings that it had before."""
    node.down()
    before = traces()
    node.up()
    run_pod_with_mounts("last")
    records = recorded()
    assert traces() != before

    assert node.down()
    assert traces() == before
    assert [record.name for record in records.values() if processes.is_alive(record)] == []
