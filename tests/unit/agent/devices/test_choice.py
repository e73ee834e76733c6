"""Which devices can be used, which transport that makes, and which rank gets which."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.devices import trees
from weightsync_agent.devices.choice import Place, assign, decide, distance, problems
from weightsync_agent.devices.records import Device, Port
from weightsync_agent.devices.sysfs import discover

GIB = 1 << 30


@pytest.mark.parametrize(
    ("tree", "asked", "part"),
    [
        pytest.param(trees.infiniband, {}, "", id="InfiniBand with a LID"),
        pytest.param(trees.roce, {"gid_index": 3}, "", id="RoCE with the asked GID"),
        pytest.param(trees.efa, {}, "it is EFA, and .* verbs only", id="EFA"),
        pytest.param(trees.rxe, {}, "", id="soft-RoCE"),
        pytest.param(trees.down, {}, r"port 1 is DOWN \(Disabled\)", id="a port that is down"),
        pytest.param(trees.no_gid, {}, "has no GID: its network interface", id="no GID"),
        pytest.param(trees.roce, {"gid_index": 7}, r"no GID at index 7; it has 0 \(RoCE v1 fe80", id="another GID"),
        pytest.param(trees.roce, {"port": 2}, "it has no port 2", id="another port"),
    ],
)
def test_what_keeps_a_device_from_use(
    tmp_path: Path, tree: Callable[[Path], None], asked: dict[str, int], part: str
) -> None:
    """A sentence that names the port, or none."""
    tree(tmp_path)
    (device,) = discover(tmp_path)
    found = problems(device, **asked)
    assert found == () if not part else re.search(part, " ".join(found))


def test_infiniband_without_a_subnet_manager_is_not_usable(tmp_path: Path) -> None:
    """Active and without a LID: nothing can address it."""
    trees.device(tmp_path, "mlx5_0")
    trees.port(tmp_path, "mlx5_0", layer="InfiniBand", lid="0x0", gids={0: (trees.SUBNET, "IB/RoCE v1", "")})
    assert "no subnet manager" in problems(discover(tmp_path)[0])[0]


@pytest.fixture
def usable(tmp_path: Path) -> tuple[Device, ...]:
    """One that works and one that is down."""
    trees.roce(tmp_path)
    trees.down(tmp_path)
    return discover(tmp_path)


CLOSED = "/dev/infiniband/uverbs0 is not in this container"


RDMA, TCP = ("rdma", ["mlx5_1"]), ("tcp", list[str]())
POOR, RICH = {"lockable": 65536, "least_lockable": GIB}, {"lockable": None, "least_lockable": GIB}


@pytest.mark.parametrize(
    ("wanted", "options", "decided", "part"),
    [
        pytest.param("auto", {}, RDMA, "mlx5_2: port 1 is DOWN", id="auto takes what works"),
        pytest.param("tcp", {}, TCP, "TCP is set", id="TCP is TCP"),
        pytest.param("rdma", {}, RDMA, "usable: mlx5_1", id="RDMA with a device"),
        pytest.param("auto", {"names": ["mlx5_2"]}, TCP, "no usable RDMA device: mlx5_2", id="auto, only a bad one"),
        pytest.param("rdma", {"names": ["mlx5_2"]}, ("rdma", []), "usable: none", id="RDMA never becomes TCP"),
        pytest.param("auto", {"names": ["mlx5_9"]}, TCP, "mlx5_9: the kernel does not", id="auto, a wrong name"),
        pytest.param("auto", POOR, TCP, "only 65536 bytes", id="auto, too little memory may be locked"),
        pytest.param("auto", RICH, RDMA, "usable", id="auto, any memory may be locked"),
    ],
)
def test_the_transport_is_decided_and_explained(
    usable: tuple[Device, ...], wanted: Any, options: dict[str, Any], decided: tuple[str, list[str]], part: str
) -> None:
    """Auto goes to TCP only with the reason; RDMA never does."""
    found = decide(wanted, usable, **options)
    assert (found.transport, [device.name for device in found.devices]) == decided
    assert part in found.why


def test_a_device_that_the_pod_may_not_open_is_not_usable(usable: tuple[Device, ...]) -> None:
    """/sys shows every device of the node in every pod; the file tells whose it is."""
    closed = tuple(replace(device, problems=(CLOSED,)) for device in usable)
    found = decide("auto", closed)
    assert found.transport == "tcp"
    assert CLOSED in found.why


def test_no_device_at_all_is_said() -> None:
    """The reason of a TCP-only machine."""
    assert "the kernel knows none" in decide("auto", ()).why


def nic(name: str, numa: int | None, *pci: str, gbit: float = 400.0) -> Device:
    """A NIC that works."""
    return Device(name, (Port(1, "ACTIVE", "LinkUp", "InfiniBand", gbit, lid=1),), numa=numa, pci=pci)


# Two sockets, each with a switch that has a GPU and a NIC, and one more NIC at the root.
NICS = [
    nic("near0", 0, "pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0"),
    nic("root0", 0, "pci0000:20", "0000:20:01.0", "0000:21:00.0"),
    nic("near1", 1, "pci0000:90", "0000:90:01.0", "0000:91:00.0", "0000:92:00.0"),
]
GPU0 = Place(0, ("pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:13:00.0"))
GPU1 = Place(1, ("pci0000:90", "0000:90:01.0", "0000:91:00.0", "0000:93:00.0"))


def test_a_common_switch_is_nearer_than_a_common_node_than_another_node() -> None:
    """And a device that does not say lies between the last two."""
    unknown = nic("unknown", None)
    order = sorted([NICS[2], unknown, NICS[1], NICS[0]], key=lambda device: distance(GPU0, device))
    assert [device.name for device in order] == ["near0", "root0", "unknown", "near1"]


@pytest.mark.parametrize(
    ("places", "devices", "expected"),
    [
        pytest.param([GPU0, GPU1], NICS, [("near0",), ("near1",)], id="each rank the NIC at its switch"),
        pytest.param(
            [Place(0)], NICS, [("near0", "root0")], id="a rank of which only the node is known gets its NICs"
        ),
        pytest.param([Place(0), Place(0)], NICS, [("near0",), ("root0",)], id="equals share out"),
        pytest.param([Place(1), Place(1), Place(1)], NICS, [("near1",)] * 3, id="more ranks than NICs share one"),
        pytest.param([Place(), Place()], NICS, [("near0", "near1"), ("root0",)], id="unknown places take turns"),
        pytest.param([Place(0)], [*NICS, nic("slow", 0, gbit=25.0)], [("near0", "root0")], id="a slow port is left"),
        pytest.param([Place(0)], [], [()], id="no NIC"),
    ],
)
def test_ranks_get_their_nearest_devices(
    places: list[Place], devices: list[Device], expected: list[tuple[str, ...]]
) -> None:
    """Best first; the number of ranks at one NIC is as small as can be."""
    assert assign(places, devices) == expected
