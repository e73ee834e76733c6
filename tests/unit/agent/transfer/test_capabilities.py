"""What two workers must agree on: the refusal names both sides, and the order of the checks is fixed."""

from importlib import metadata
from typing import Any

import pytest

from weightsync.errors import Refused, TransferError
from weightsync.plan import Rdma
from weightsync.wire.v1 import Capabilities
from weightsync_agent.transfer.capabilities import DISTRIBUTIONS, agree, along, installed, of, release

SETTINGS = {"MC_TCP_SLICE_SIZE": "1048576", "MC_NUM_TCP_IO_THREADS": "4"}


def side(**changes: Any) -> Capabilities:
    """A worker's capabilities, with changes."""
    return Capabilities.model_validate(
        {"mooncake": "0.3.13.post1", "transport": "tcp", "settings": SETTINGS, **changes}
    )


def test_alike_agree() -> None:
    """Equal sides agree; a newer package on one of them does not matter."""
    agree(side(), side())
    agree(side(), side(mooncake="0.3.14"))
    agree(side(mooncake="1.0"), side())


@pytest.mark.parametrize(
    ("theirs", "parts"),
    [
        pytest.param(
            {"mooncake": "0.3.12"}, ["their Mooncake 0.3.12", "0.3.13"], id="a package that reports writes too early"
        ),
        pytest.param({"mooncake": "unknown"}, ["their Mooncake unknown"], id="a version that cannot be read"),
        pytest.param({"transport": "rdma"}, ["our transport is tcp", "rdma"], id="another transport"),
        pytest.param({"tcp_protocol": 1}, ["MC_TCP_PROTO=1", "theirs 1"], id="MC_TCP_PROTO=1"),
        pytest.param(
            {"settings": {**SETTINGS, "MC_TCP_SLICE_SIZE": "65536"}},
            ["MC_TCP_SLICE_SIZE", "1048576 on our side", "65536 on theirs"],
            id="another slice size",
        ),
        pytest.param(
            {"settings": {"MC_TCP_SLICE_SIZE": "1048576"}},
            ["MC_NUM_TCP_IO_THREADS", "4 on our side", "unset on theirs"],
            id="a setting that one side lacks",
        ),
        pytest.param(
            {"mooncake": "0.3.12", "transport": "rdma"},
            ["their Mooncake"],
            id="an old package is named before the rest",
        ),
    ],
)
def test_difference_is_refused(theirs: dict[str, Any], parts: list[str]) -> None:
    """The sentence holds both sides' values, the reason is CapabilityMismatch; swapped sides are refused too."""
    with pytest.raises(Refused) as caught:
        agree(side(), side(**theirs))
    assert caught.value.reason == "CapabilityMismatch"
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    with pytest.raises(Refused):
        agree(side(**theirs), side())


def test_settings_that_do_not_matter_are_ignored() -> None:
    """A setting outside the shared ones may differ, so that a newer peer may tell more."""
    agree(side(), side(settings={**SETTINGS, "MC_TCP_LANES_PER_PEER": "8"}))


def test_of_reads_the_workers_environment() -> None:
    """Shared MC_* that are set are told, others are not; MC_TCP_PROTO=1 shows as protocol version 1."""
    told = of(
        "0.3.14", {"MC_TCP_SLICE_SIZE": "65536", "MC_LOG_LEVEL": "INFO", "MC_TCP_PROTO": "1", "MC_USE_IPV6": ""}
    )
    assert told.settings == {"MC_TCP_SLICE_SIZE": "65536"}
    assert told.tcp_protocol == 1


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        pytest.param("0.3.13.post1", (0, 3, 13), id="a post release counts as its release"),
        pytest.param("0.3.14rc2", (0, 3, 14), id="a candidate counts as its release"),
        pytest.param("1", (1,), id="one number"),
        pytest.param("main", (), id="no number is below everything"),
    ],
)
def test_release(version: str, expected: tuple[int, ...]) -> None:
    """The leading numbers of a version, for comparing."""
    assert release(version) == expected


def test_any_of_the_distributions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever package is installed gives the version; none at all is an error that names the three."""
    known = {DISTRIBUTIONS[2]: "0.3.14"}

    def version(name: str) -> str:
        if name not in known:
            raise metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(metadata, "version", version)
    assert installed() == "0.3.14"
    known.clear()
    with pytest.raises(TransferError, match="mooncake-transfer-engine-cuda13"):
        installed()


@pytest.mark.parametrize(
    ("forced", "transport"), [pytest.param("MC_FORCE_TCP", "tcp"), pytest.param("MC_FORCE_HCA", "rdma")]
)
def test_the_forced_transport_is_the_workers(forced: str, transport: str) -> None:
    """Mooncake chooses nothing, so what its process was told is what it speaks."""
    found = of("0.3.13", {forced: "1", "MC_MTU": "4096", "MC_GID_INDEX": "3", **SETTINGS})
    assert (found.transport, found.settings) == (transport, {**SETTINGS, "MC_MTU": "4096"})


def test_a_packets_size_counts_over_rdma_alone() -> None:
    """The writers' side may have it from its environment or from the WeightSync; the environment counts first."""
    ours, theirs = side(), {**SETTINGS, "MC_MTU": "4096"}
    agree(ours, side(settings=theirs))
    with pytest.raises(Refused, match="MC_MTU is unset on our side and 4096 on theirs"):
        agree(along(ours, "rdma", Rdma()), side(transport="rdma", settings=theirs))
    agree(along(ours, "rdma", Rdma(mtu=4096)), side(transport="rdma", settings=theirs))
    smaller = side(settings={**SETTINGS, "MC_MTU": "1024"})
    with pytest.raises(Refused, match="MC_MTU is 1024 on our side and 4096 on theirs"):
        agree(along(smaller, "rdma", Rdma(mtu=4096)), side(transport="rdma", settings=theirs))
