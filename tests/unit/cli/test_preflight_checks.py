"""What preflight says of a pod's devices, memory and ports: the finding, and what to do about it."""

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.devices import trees
from weightsync_agent.devices.choice import decide
from weightsync_agent.devices.sysfs import discover
from weightsync_agent.devices.verbs import Lockable
from weightsync_agent.settings import Settings
from weightsync_cli.checks import machine
from weightsync_cli.checks.finding import Finding, exit_code

MIB = 1 << 20


def settings(**fields: Any) -> Settings:
    """An agent's, with changes."""
    return Settings(role="engine", plan="file:/plan", own_uid="engine-0", **fields)


@pytest.mark.parametrize(
    ("tree", "fields", "expected"),
    [
        pytest.param(trees.roce, {}, ("ok", "GIDs 0: RoCE v1 fe80", ""), id="RoCE that works"),
        pytest.param(trees.infiniband, {}, ("ok", "200 Gb/s; NUMA node 1", ""), id="InfiniBand that works"),
        pytest.param(trees.efa, {}, ("warning", "it is EFA", "built with EFA"), id="EFA"),
        pytest.param(trees.down, {}, ("warning", "port 1 is DOWN", "cable"), id="down, where TCP will do"),
        pytest.param(trees.down, {"transport": "rdma"}, ("failed", "DOWN", "cable"), id="down, and RDMA is set"),
        pytest.param(trees.no_gid, {}, ("warning", "has no GID", "RDMA-capable CNI"), id="no GID"),
        pytest.param(
            trees.roce, {"gid_index": 9}, ("warning", "no GID at index 9", "WEIGHTSYNC_GID_INDEX"), id="another GID"
        ),
    ],
)
def test_a_device_is_judged(
    tmp_path: Path, tree: Callable[[Path], None], fields: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    """One line of facts where it works; cause and remedy where it does not."""
    tree(tmp_path)
    devices, given = discover(tmp_path), settings(**fields)
    first, _ = machine.devices(devices, given, decide(given.transport, devices))
    status, found, remedy = expected
    assert (first.status, found in first.found, remedy in first.remedy) == (status, True, True), first
    assert bool(first.remedy) == (status != "ok")


def test_a_closed_device_says_which_file_is_missing_and_where_to_ask_for_it(tmp_path: Path) -> None:
    """A pod that sees a device in /sys and has not asked for it."""
    trees.roce(tmp_path)
    closed = tuple(
        replace(device, problems=("/dev/infiniband/uverbs0 is not in this container",))
        for device in discover(tmp_path)
    )
    first, _ = machine.devices(closed, settings(), decide("auto", closed))
    assert "resources" in first.remedy


def test_a_machine_without_devices_is_well_unless_rdma_is_set() -> None:
    """It says that bytes can only go over TCP."""
    for wanted, expected in (("tcp", ["ok", "ok"]), ("auto", ["ok", "warning"]), ("rdma", ["failed", "failed"])):
        given = settings(transport=wanted)
        found = machine.devices((), given, decide(given.transport, ()))
        assert [finding.status for finding in found] == expected
        assert "only go over TCP" in found[0].found


@pytest.mark.parametrize(
    ("lockable", "needed", "transport", "status"),
    [
        pytest.param(None, 0, "rdma", "ok", id="any amount"),
        pytest.param(8 * MIB, 0, "tcp", "ok", id="a small limit does not matter over TCP"),
        pytest.param(8 * MIB, 0, "rdma", "failed", id="a small limit over RDMA"),
        pytest.param(4096 * MIB, 8192 * MIB, "rdma", "failed", id="less than the arenas"),
        pytest.param(8192 * MIB, 8192 * MIB, "rdma", "ok", id="as much as the arenas"),
    ],
)
def test_lockable_memory_matters_over_rdma(lockable: int | None, needed: int, transport: str, status: str) -> None:
    """The remedy names the capability and the limit."""
    found = machine.memlock(Lockable(lockable), needed, transport)
    assert found.status == status
    assert ("IPC_LOCK" in found.remedy) == (status == "failed")


@pytest.mark.parametrize(
    ("mounts", "status"),
    [
        pytest.param("tmpfs {} tmpfs rw 0 0", "ok", id="memory"),
        pytest.param("/dev/vda1 {} ext4 rw 0 0", "warning", id="a disk"),
        pytest.param("tmpfs / tmpfs rw 0 0\n/dev/vda1 {} ext4 rw 0 0", "warning", id="the innermost mount counts"),
    ],
)
def test_the_volume_is_memory(tmp_path: Path, mounts: str, status: str) -> None:
    """By the file system at its path."""
    assert machine.shared_memory(tmp_path, mounts.format(tmp_path.parent)).status == status


def test_a_volume_that_is_not_there_fails(tmp_path: Path) -> None:
    """With its path, and what to mount."""
    found = machine.shared_memory(tmp_path / "none", "")
    assert (found.status, str(tmp_path / "none") in found.found, "medium: Memory" in found.remedy) == (
        "failed", True, True,
    )  # fmt: skip


def test_taken_ports_are_counted() -> None:
    """A range of 20 of which one is taken does not do."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        found = machine.ports(port, port + 19)
    assert found.status == "failed"
    assert f"{port} to {port + 19}: only" in found.found


@pytest.mark.parametrize(
    ("text", "part"),
    [
        pytest.param("always [within_size] advise never deny force", "takes them (within_size)", id="given"),
        pytest.param("always within_size advise [never] deny force", "takes none (never)", id="not given"),
        pytest.param("", "has none", id="no such kernel"),
    ],
)
def test_huge_pages_are_told(text: str, part: str) -> None:
    """Never a failure."""
    found = machine.hugepages(text)
    assert (found.status, part in found.found) == ("ok", True)


def test_one_failure_fails_the_whole() -> None:
    """A warning does not."""
    assert exit_code([Finding("a", "ok", ""), Finding("b", "warning", "")]) == 0
    assert exit_code([Finding("a", "ok", ""), Finding("b", "failed", "")]) == 1
