"""Mooncake's integers: each becomes a TransferError with a sentence, or one of three outcomes."""

import pytest

from weightsync.errors import TransferError
from weightsync_agent.transfer.codes import Poll, accepted, check, polled


@pytest.mark.parametrize(
    ("code", "part"),
    [
        pytest.param(-1, "gives no reason", id="a failure without a reason says where the reason may stand"),
        pytest.param(-3, "not registered", id="memory that is not registered is named so"),
        pytest.param(-7, "overlaps", id="a double registration is named so"),
        pytest.param(-202, "memlock", id="a device that refuses says which limit to raise"),
        pytest.param(-99, "not known", id="a code of a later release is said to be unknown"),
    ],
)
def test_failed_call_becomes_a_sentence(code: int, part: str) -> None:
    """The error names the call, the code and what to do; nothing else of the integer travels."""
    with pytest.raises(TransferError, match=part) as caught:
        check(code, "registering 4096 bytes")
    assert str(caught.value).startswith(f"registering 4096 bytes failed (Mooncake code {code})")
    assert caught.value.reason == "TransferFailed"


def test_zero_is_success() -> None:
    """0 raises nothing."""
    check(0, "initialising")


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        pytest.param(0, Poll.PENDING, id="0 is pending"),
        pytest.param(1, Poll.DONE, id="1 is done"),
        pytest.param(-1, Poll.FAILED, id="-1 is failed, and terminal"),
        pytest.param(-2, Poll.PENDING, id="-2 is a timeout that ends nothing: not terminal"),
        pytest.param(7, Poll.PENDING, id="an unknown code frees no buffer"),
    ],
)
def test_polled(code: int, outcome: Poll) -> None:
    """Only 1 and -1 are terminal: a buffer is never given back on anything else."""
    assert polled(code) is outcome


def test_submit_of_zero_was_not_accepted() -> None:
    """0 from a submit is a failure, any other number an id."""
    assert not accepted(0)
    assert accepted(140_000_000_000)
