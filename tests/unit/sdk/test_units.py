"""Quantities of bytes, read as Kubernetes writes them and printed for people."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.errors import InputError
from weightsync.units import QUANTITY_PATTERN, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param("0", 0, id="a bare number"),
        pytest.param("512Mi", 512 * 2**20, id="binary mega"),
        pytest.param("1k", 1000, id="decimal kilo"),
        pytest.param("3G", 3 * 10**9, id="decimal giga"),
        pytest.param(" 2Ti ", 2 * 2**40, id="blanks around"),
    ],
)
def test_quantities_that_are_read(text: str, count: int) -> None:
    """The unit's factor times the digits."""
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "Mi", "1.5Gi", "-1", "1 Mi", "1KI", "1m", "1e3", "0x10"])
def test_quantities_that_are_refused(text: str) -> None:
    """The message repeats the text and lists the units."""
    with pytest.raises(InputError, match=re.escape(repr(text)) + ".*k M G T Ki Mi Gi Ti"):
        parse_bytes(text)


@given(st.from_regex(QUANTITY_PATTERN, fullmatch=True))
def test_what_the_api_admits_can_be_read(text: str) -> None:
    """The pattern in the CRD is no wider than the reader; nothing admitted is zero."""
    assert parse_bytes(text) > 0


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 * 2**20, "1.5 GiB"), (5 * 2**40, "5.0 TiB")],
)
def test_counts_for_people(count: int, text: str) -> None:
    """The largest unit under 1024, one decimal."""
    assert format_bytes(count) == text
