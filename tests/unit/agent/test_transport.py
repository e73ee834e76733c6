"""From settings and devices to a worker's settings."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.devices import trees
from weightsync.errors import TransferError
from weightsync.plan import Rdma
from weightsync.wire.v1 import Transport
from weightsync_agent import transport
from weightsync_agent.devices import sysfs, verbs
from weightsync_agent.devices.records import Device, Port
from weightsync_agent.devices.route import NO_DEVICE, Side
from weightsync_agent.settings import Settings
from weightsync_agent.transfer.settings import OWN, Carrier, TransferSettings, Verbs


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


def started_with(**fields: Any) -> TransferSettings:
    """What workers of an agent with these settings are started with."""
    return transport.transfer_settings(settings(**fields), transport.chosen(settings(**fields)))


def test_tcp_looks_at_no_device(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine has does not matter."""
    trees.roce(machine)
    monkeypatch.delattr(sysfs, "discover")
    found = started_with(transport="tcp", worker_start_seconds=7, contact_seconds=9)
    assert (found.transport, found.verbs.devices) == ("tcp", ())
    assert (found.start_seconds, found.contact_seconds) == (7, 9)


def test_auto_takes_the_usable_devices_and_the_overrides(machine: Path) -> None:
    """Names go to Mooncake, so that it uses no other; overrides stand beside them."""
    trees.roce(machine)
    trees.down(machine)
    found = started_with(transport="auto", gid_index=3, traffic_class=106, rdma_mtu=4096)
    assert (found.transport, found.verbs.devices) == ("rdma", ("mlx5_1",))
    assert (found.verbs.gid_index, found.verbs.traffic_class, found.verbs.mtu) == (3, 106, 4096)


def test_auto_takes_tcp_where_nothing_is_usable(machine: Path) -> None:
    """Here the port is down."""
    trees.down(machine)
    assert started_with(transport="auto").transport == "tcp"


def test_rdma_stays_rdma_where_nothing_is_usable(machine: Path) -> None:
    """Its workers will not start, and say why."""
    trees.down(machine)
    found = started_with(transport="rdma", devices="mlx5_2")
    assert (found.transport, found.verbs.devices) == ("rdma", ("mlx5_2",))


FAST, SLOW = (Port(1, "ACTIVE", "LinkUp", "InfiniBand", gbit, lid=1) for gbit in (400.0, 25.0))
NICS = tuple(Device(f"mlx5_{number}", (FAST,)) for number in range(4))


@pytest.mark.parametrize(
    ("ranks", "devices", "given"),
    [
        pytest.param([0], NICS, {0: "0123"}, id="one rank has all"),
        pytest.param([0, 1], NICS, {0: "02", 1: "13"}, id="two ranks share four"),
        pytest.param([4, 5, 6, 7], NICS, {4: "0", 5: "1", 6: "2", 7: "3"}, id="one each, on any node of a trainer"),
        pytest.param([0, 1, 2], NICS[:2], {0: "0", 1: "1", 2: "0"}, id="more ranks than devices"),
        pytest.param([0], (*NICS[:2], Device("mlx5_9", (SLOW,))), {0: "01"}, id="a slow one beside fast ones"),
    ],
)
def test_the_devices_of_a_rank(ranks: list[int], devices: tuple[Device, ...], given: dict[int, str]) -> None:
    """All ranks of a pod share the devices that its agent may use; nothing else of the settings differs."""
    usable = tuple(device.name for device in devices)
    common = TransferSettings(transport="rdma", verbs=Verbs(devices=usable, mtu=4096))
    found = {rank: transport.of_rank(common, devices, rank, ranks) for rank in ranks}
    assert {rank: each.verbs.devices for rank, each in found.items()} == {
        rank: tuple(f"mlx5_{number}" for number in numbers) for rank, numbers in given.items()
    }
    assert {each.verbs.mtu for each in found.values()} == {4096}


@pytest.mark.parametrize(
    ("common", "devices"),
    [
        pytest.param(TransferSettings(), NICS, id="over TCP"),
        pytest.param(TransferSettings(transport="rdma", verbs=Verbs(devices=("mlx5_7",))), (), id="none is usable"),
    ],
)
def test_nothing_is_shared_out(common: TransferSettings, devices: tuple[Device, ...]) -> None:
    """A name that cannot be used goes to Mooncake all the same: its refusal ends the worker."""
    assert transport.of_rank(common, devices, 1, [0, 1]) == common


HERE = Side("engine-0", ("mlx5_0", "mlx5_1"))


@pytest.mark.parametrize(
    ("own", "carrier", "expected"),
    [
        pytest.param("tcp", OWN, ("tcp", ()), id="nothing asked for: its own"),
        pytest.param("rdma", OWN, ("rdma", ("mlx5_0", "mlx5_1")), id="its own may be RDMA"),
        pytest.param("rdma", Carrier("tcp"), ("tcp", ()), id="TCP for a peer without a device"),
        pytest.param("tcp", Carrier("rdma"), ("rdma", ("mlx5_0", "mlx5_1")), id="RDMA beside TCP"),
        pytest.param("rdma", Carrier("rdma", Rdma(devices=("mlx5_1",))), ("rdma", ("mlx5_1",)), id="filtered"),
    ],
)
def test_a_worker_over_a_carrier(own: Transport, carrier: Carrier, expected: tuple[str, tuple[str, ...]]) -> None:
    """What the route asks for; over TCP no device is told to Mooncake."""
    common = TransferSettings(transport=own, verbs=Verbs(devices=HERE.devices))
    found = transport.over(common, HERE, carrier)
    told = found.verbs.devices if found.transport == "rdma" else ()
    assert (found.transport, told) == expected
    forced = {"tcp": "MC_FORCE_TCP", "rdma": "MC_FORCE_HCA"}[expected[0]]
    assert [name for name in found.environment() if name.startswith("MC_FORCE")] == [forced]


def test_the_agents_environment_counts_before_the_spec() -> None:
    """A node may differ from the others; what it does not set, the WeightSync sets."""
    common = TransferSettings(transport="rdma", verbs=Verbs(devices=HERE.devices, gid_index=0, port=2))
    wish = Rdma(gid_index=3, traffic_class=106, service_level=1, mtu=4096, queue_pairs=4)
    told = transport.over(common, HERE, Carrier("rdma", wish)).environment()
    assert {name: told[name] for name in ("MC_GID_INDEX", "MC_IB_PORT", "MC_IB_TC", "MC_IB_SL")} == {
        "MC_GID_INDEX": "0", "MC_IB_PORT": "2", "MC_IB_TC": "106", "MC_IB_SL": "1",
    }  # fmt: skip
    assert (told["MC_MTU"], told["MC_NUM_QP_PER_EP"]) == ("4096", "4")


@pytest.mark.parametrize(
    ("side", "carrier", "said"),
    [
        pytest.param(Side("e", why="port down"), Carrier("rdma"), "e has no RDMA device.*port down", id="none"),
        pytest.param(HERE, Carrier("rdma", Rdma(devices=("mlx5_9",))), "only mlx5_9 may be used", id="filtered away"),
        pytest.param(Side("e", ("x",), tcp=False), Carrier("tcp"), "e takes RDMA only", id="TCP where RDMA is set"),
    ],
)
def test_a_carrier_that_is_not_here(side: Side, carrier: Carrier, said: str) -> None:
    """No worker starts over another one."""
    own: Transport = "rdma" if carrier.transport == "tcp" else "tcp"
    with pytest.raises(TransferError, match=said) as caught:
        transport.over(TransferSettings(transport=own), side, carrier)
    assert (caught.value.reason, caught.value.quiet) == (NO_DEVICE, True)


def test_what_an_agent_announces(machine: Path) -> None:
    """Devices that can be used, else why not; with RDMA set also devices that verbs do not know."""
    trees.down(machine)
    found = settings()
    said = transport.side(found, transport.chosen(found))
    assert (said.devices, said.tcp) == ((), True)
    assert "port 1 is DOWN" in said.why
    found = settings(transport="rdma", devices="efa_0")
    said = transport.side(found, transport.chosen(found))
    assert (said.devices, said.why, said.tcp) == (("efa_0",), "", False)
