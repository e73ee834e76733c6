"""Over which transport a route goes: never over one that a side lacks, never over TCP without a word."""

import pytest

from weightsync.errors import Refused
from weightsync.plan import Protocol
from weightsync_agent.devices.route import NO_DEVICE, Choice, Side, choose

HAS = {"devices": ("mlx5_0", "mlx5_1")}
LACKS = {"why": "port 1 is DOWN"}
ONLY_RDMA = {**HAS, "tcp": False}


def source(**fields: object) -> Side:
    return Side("source s", **fields)  # type: ignore[arg-type]


def target(**fields: object) -> Side:
    return Side("rollout-0", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("protocol", "ours", "theirs", "transport"),
    [
        pytest.param("Auto", source(**HAS), target(**HAS), "rdma", id="both have a device"),
        pytest.param("Auto", source(**LACKS), target(**HAS), "tcp", id="the source has none"),
        pytest.param("Auto", source(**HAS), target(**LACKS), "tcp", id="the target has none"),
        pytest.param("Auto", source(**HAS), target(**ONLY_RDMA), "rdma", id="the target takes RDMA only"),
        pytest.param("RDMA", source(**HAS), target(**HAS), "rdma", id="RDMA is wanted and there"),
        pytest.param("TCP", source(**HAS), target(**HAS), "tcp", id="TCP is wanted, devices are left alone"),
    ],
)
def test_the_transport_of_a_route(protocol: Protocol, ours: Side, theirs: Side, transport: str) -> None:
    """RDMA exactly where it is allowed and both sides have a device."""
    assert choose(protocol, ours, theirs).transport == transport


@pytest.mark.parametrize(
    ("protocol", "ours", "theirs", "said"),
    [
        pytest.param("RDMA", source(**LACKS), target(**HAS), ["source s", "port 1 is DOWN"], id="source without"),
        pytest.param("RDMA", source(**HAS), target(), ["rollout-0", "none announced"], id="the target said nothing"),
        pytest.param("RDMA", source(), target(**LACKS), ["source s", "rollout-0"], id="neither"),
        pytest.param("Auto", source(), target(**ONLY_RDMA), ["rollout-0 takes RDMA only"], id="TCP is not allowed"),
        pytest.param("TCP", source(**HAS), target(**ONLY_RDMA), ["transfer.protocol is TCP"], id="nor is RDMA"),
    ],
)
def test_nothing_falls_back(protocol: Protocol, ours: Side, theirs: Side, said: list[str]) -> None:
    """Refused with reason NoDevice, who lacks what, and what to do."""
    with pytest.raises(Refused) as caught:
        choose(protocol, ours, theirs)
    assert caught.value.reason == NO_DEVICE
    assert all(part in str(caught.value) for part in (*said, "WEIGHTSYNC_TRANSPORT" if protocol == "TCP" else "Auto"))


def test_tcp_in_place_of_rdma_is_said() -> None:
    """Why, with the side's own reason; nothing where TCP was asked for."""
    assert choose("Auto", source(**HAS), target(**LACKS)) == Choice(
        "tcp", "rollout-0 has no RDMA device that it can use (port 1 is DOWN)"
    )
    assert choose("TCP", source(), target()).why == ""


@pytest.mark.parametrize(
    ("side", "names", "left", "why"),
    [
        pytest.param(source(**HAS), (), ("mlx5_0", "mlx5_1"), "", id="no filter"),
        pytest.param(source(**HAS), ("mlx5_1", "mlx5_7"), ("mlx5_1",), "", id="one is left"),
        pytest.param(source(**HAS), ("mlx5_7",), (), "it has mlx5_0, mlx5_1, and only mlx5_7", id="none is left"),
        pytest.param(source(**LACKS), ("mlx5_7",), (), "port 1 is DOWN", id="there was none"),
    ],
)
def test_a_filter_of_devices(side: Side, names: tuple[str, ...], left: tuple[str, ...], why: str) -> None:
    """A side that has others than those that may be used says both."""
    found = side.only(names)
    assert (found.devices, found.why) == (left, found.why if why and why in found.why else why)
