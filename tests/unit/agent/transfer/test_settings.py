"""A worker's settings: refused with a sentence, and the environment that they become."""

import pytest

from weightsync.errors import InputError
from weightsync_agent.transfer.settings import TransferSettings, child_environment


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
