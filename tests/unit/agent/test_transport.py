"""From settings and devices to a worker's settings."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.devices import trees
from weightsync_agent import transport
from weightsync_agent.devices import sysfs, verbs
from weightsync_agent.settings import Settings


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Devices are those of a tree of /sys here, and all of them can be opened; any memory may be locked."""
    found = sysfs.discover
    monkeypatch.setattr(sysfs, "discover", lambda: found(tmp_path))
    monkeypatch.setattr(verbs, "opened", lambda devices: devices)
    monkeypatch.setattr(verbs.Lockable, "of_this_process", lambda: verbs.Lockable(None))
    return tmp_path


def settings(**fields: Any) -> Settings:
    """An agent's."""
    return Settings(role="engine", plan="file:/plan", own_uid="engine-0", **fields)


def test_tcp_looks_at_no_device(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default: what a machine has does not matter."""
    trees.roce(machine)
    monkeypatch.delattr(sysfs, "discover")
    found = transport.transfer_settings(settings())
    assert (found.transport, found.verbs.devices) == ("tcp", ())


def test_auto_takes_the_usable_devices_and_the_overrides(machine: Path) -> None:
    """Names go to Mooncake, so that it uses no other; overrides stand beside them."""
    trees.roce(machine)
    trees.down(machine)
    found = transport.transfer_settings(settings(transport="auto", gid_index=3, traffic_class=106, rdma_mtu=4096))
    assert (found.transport, found.verbs.devices) == ("rdma", ("mlx5_1",))
    assert (found.verbs.gid_index, found.verbs.traffic_class, found.verbs.mtu) == (3, 106, 4096)


def test_auto_takes_tcp_where_nothing_is_usable(machine: Path) -> None:
    """Here the port is down."""
    trees.down(machine)
    assert transport.transfer_settings(settings(transport="auto")).transport == "tcp"


def test_rdma_stays_rdma_where_nothing_is_usable(machine: Path) -> None:
    """Its workers will not start, and say why."""
    trees.down(machine)
    found = transport.transfer_settings(settings(transport="rdma", devices="mlx5_2"))
    assert (found.transport, found.verbs.devices) == ("rdma", ("mlx5_2",))
