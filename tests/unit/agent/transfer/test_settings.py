"""A worker's settings: refused with a sentence, and the environment that they become."""

import pytest

from weightsync.errors import InputError
from weightsync_agent.transfer.settings import TransferSettings, Verbs, child_environment


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        pytest.param(
            {"min_port": 15000, "max_port": 15002}, "at least 20", id="a range that a restart would exhaust"
        ),
        pytest.param({"peer_pieces": 2000}, "1 to 1000", id="more pieces than Mooncake bears"),
        pytest.param({"piece_bytes": 0}, "piece_bytes", id="empty pieces"),
        pytest.param({"poll_seconds": 0.0}, "busy poll", id="a busy poll"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, float], part: str) -> None:
    """The sentence says what to change."""
    with pytest.raises(InputError, match=part):
        TransferSettings(**changes)  # type: ignore[arg-type]


def test_environment_is_set_alike_for_both_ends() -> None:
    """Slice size, threads and ports are always written out, so that no inherited value makes two agents differ."""
    environment = child_environment(
        TransferSettings(io_threads=2, slice_bytes=65536), "10.0.0.1", {"MC_TCP_SLICE_SIZE": "1", "MC_GID_INDEX": "3"}
    )
    assert environment["MC_TCP_SLICE_SIZE"] == "65536"
    assert environment["MC_NUM_TCP_IO_THREADS"] == "2"
    assert environment["MC_GID_INDEX"] == "3"
    assert environment["MC_FORCE_TCP"] == "1"
    assert "MC_USE_IPV6" not in environment


def test_ipv6_host_turns_ipv6_on() -> None:
    """Both sides of an IPv6 cluster need MC_USE_IPV6; the host tells."""
    assert child_environment(TransferSettings(), "fd00::1", {})["MC_USE_IPV6"] == "1"


def test_early_completion_is_forbidden() -> None:
    """MC_TCP_PROTO=1 in the agent's environment is refused before a worker starts."""
    with pytest.raises(InputError, match="MC_TCP_PROTO=1"):
        child_environment(TransferSettings(), "10.0.0.1", {"MC_TCP_PROTO": "1"})


def test_one_transport_is_forced_whatever_was_inherited() -> None:
    """With both or none of the two variables Mooncake would choose by itself."""
    inherited = {"MC_FORCE_TCP": "1", "MC_FORCE_HCA": "1"}
    over_tcp = child_environment(TransferSettings(), "10.0.0.1", inherited)
    over_rdma = child_environment(TransferSettings(transport="rdma"), "10.0.0.1", inherited)
    assert ("MC_FORCE_TCP" in over_tcp, "MC_FORCE_HCA" in over_tcp) == (True, False)
    assert ("MC_FORCE_TCP" in over_rdma, "MC_FORCE_HCA" in over_rdma) == (False, True)


def test_overrides_of_devices_are_mooncakes_variables() -> None:
    """Those that are set, over RDMA only; 0 is a value."""
    verbs = Verbs(
        devices=("mlx5_0",),
        port=1,
        gid_index=0,
        traffic_class=106,
        service_level=3,
        mtu=4096,
        queue_pairs=4,
        retries=7,
    )
    found = TransferSettings(transport="rdma", verbs=verbs).environment()
    expected = {
        "MC_IB_PORT": "1", "MC_GID_INDEX": "0", "MC_IB_TC": "106", "MC_IB_SL": "3", "MC_MTU": "4096",
        "MC_NUM_QP_PER_EP": "4", "MC_RETRY_CNT": "7",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert not expected.keys() & TransferSettings(verbs=verbs).environment().keys()
    assert not expected.keys() & TransferSettings(transport="rdma").environment().keys()
