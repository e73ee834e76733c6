"""Devices from trees of /sys: every field, for the kinds of devices that there are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.devices import trees
from weightsync_agent.devices.records import Gid
from weightsync_agent.devices.sysfs import discover

KINDS: list[Any] = [
    pytest.param(
        trees.infiniband,
        {"name": "mlx5_0", "numa": 1, "driver": "mlx5_core", "firmware": "20.35.1012", "gbit": 200.0},
        {"layer": "InfiniBand", "state": "ACTIVE", "physical": "LinkUp", "lid": 26, "gbit": 200.0, "mtu": None},
        [(0, "IB", "", "")],
        id="InfiniBand has a LID and no interface",
    ),
    pytest.param(
        trees.roce,
        {"name": "mlx5_1", "numa": 0, "gbit": 400.0, "uverbs": "uverbs0"},
        {"layer": "Ethernet", "state": "ACTIVE", "lid": 0, "mtu": 9000},
        [
            (0, "RoCE v1", "", "eth1"),
            (1, "RoCE v2", "", "eth1"),
            (2, "RoCE v1", "10.0.1.5", "eth1"),
            (3, "RoCE v2", "10.0.1.5", "eth1"),
        ],
        id="RoCE has each address in both versions",
    ),
    pytest.param(
        trees.efa,
        {"name": "rdmap79s0", "driver": "efa", "numa": 0},
        {"layer": "Unspecified", "state": "ACTIVE", "gbit": 100.0},
        [(0, "RoCE v2", "", "")],
        id="EFA has a link layer of its own",
    ),
    pytest.param(
        trees.rxe,
        {"name": "rxe0", "numa": None, "pci": (), "driver": "", "firmware": ""},
        {"layer": "Ethernet", "mtu": 4200, "gbit": 1.0},
        [(0, "RoCE v2", "", "eth0"), (1, "RoCE v2", "10.0.1.5", "eth0")],
        id="soft-RoCE has no PCI function",
    ),
    pytest.param(
        trees.down,
        {"name": "mlx5_2", "gbit": 0.0},
        {"state": "DOWN", "physical": "Disabled"},
        [(0, "RoCE v2", "", "eth2")],
        id="a port that is down",
    ),
    pytest.param(trees.no_gid, {"name": "mlx5_3"}, {"state": "ACTIVE", "mtu": None}, [], id="no GID at all"),
]


@pytest.mark.parametrize(("tree", "device", "port", "gids"), KINDS)
def test_a_device_is_read(
    tmp_path: Path,
    tree: Callable[[Path], None],
    device: dict[str, object],
    port: dict[str, object],
    gids: list[tuple[int, str, str, str]],
) -> None:
    """Fields of the device, of its port, and the GIDs that are not empty."""
    tree(tmp_path)
    (found,) = discover(tmp_path)
    (only,) = found.ports
    assert {name: getattr(found, name) for name in device} == device
    assert {name: getattr(only, name) for name in port} == port
    assert [(gid.index, gid.kind, gid.ipv4, gid.interface) for gid in only.gids] == gids


def test_the_path_of_bridges_is_outermost_first(tmp_path: Path) -> None:
    """Root complex, port, switch, function."""
    trees.infiniband(tmp_path)
    assert discover(tmp_path)[0].pci == ("pci0000:a0", "0000:a0:01.0", "0000:a1:00.0", "0000:a2:00.0")


def test_devices_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """mlx5_10 behind mlx5_2, each with its own file."""
    for number in (10, 2, 0):
        trees.device(tmp_path, f"mlx5_{number}", number=number, pci=("pci0000:16", f"0000:{number:02x}:00.0"))
    found = discover(tmp_path)
    assert [device.name for device in found] == ["mlx5_0", "mlx5_2", "mlx5_10"]
    assert [device.uverbs for device in found] == ["uverbs0", "uverbs2", "uverbs10"]


def test_a_machine_without_devices_has_none(tmp_path: Path) -> None:
    """No folder of the kernel's is no error."""
    assert discover(tmp_path) == ()


def test_link_local_gids_are_known() -> None:
    """Of fe80::/10, and nothing else."""
    assert Gid(0, trees.LOCAL, "RoCE v2").link_local
    assert not Gid(0, trees.V4, "RoCE v2").link_local
