"""Parts of a payload that is not in one piece: put together, looked up, cut into submits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync_agent.transfer.runs import Placed, confined, joined, within
from weightsync_agent.transfer.window import Window, parts

RUNS = [Placed(0, 10, 1000), Placed(16, 4, 5000), Placed(20, 8, 70)]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([Placed(0, 4, 100), Placed(4, 4, 104)], [Placed(0, 8, 100)], id="what touches is one"),
        pytest.param([Placed(4, 4, 104), Placed(0, 4, 100)], [Placed(0, 8, 100)], id="in whatever order"),
        pytest.param([Placed(0, 4, 100), Placed(4, 4, 108)], None, id="apart in memory they stay two"),
        pytest.param(
            [Placed(0, 4, 100), Placed(8, 4, 104)], None, id="apart in the payload too: padding has no place"
        ),
    ],
)
def test_joined(parts: list[Placed], expected: list[Placed] | None) -> None:
    """By rising offset."""
    assert joined(parts) == (sorted(parts) if expected is None else expected)


@pytest.mark.parametrize(
    ("offset", "nbytes", "expected"),
    [
        pytest.param(0, 28, RUNS, id="all of it"),
        pytest.param(4, 3, [Placed(4, 3, 1004)], id="within one run"),
        pytest.param(8, 10, [Placed(8, 2, 1008), Placed(16, 2, 5000)], id="over the padding"),
        pytest.param(10, 6, [], id="the padding alone"),
        pytest.param(19, 2, [Placed(19, 1, 5003), Placed(20, 1, 70)], id="where two runs meet"),
    ],
)
def test_within(offset: int, nbytes: int, expected: list[Placed]) -> None:
    """What lies in a span, with its addresses."""
    assert within(RUNS, offset, nbytes) == expected


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)), min_size=1, max_size=8), st.integers(1, 16))
def test_every_byte_is_submitted_once_to_where_it_lies(shapes: list[tuple[int, int]], size: int) -> None:
    """Whatever the runs, the buckets and the pieces."""
    runs, at = [], 0
    for number, (nbytes, gap) in enumerate(shapes):
        runs.append(Placed(at, nbytes, 1000 * number))
        at += nbytes + gap
    where = {run.offset + i: run.address + i for run in runs for i in range(run.nbytes)}
    buckets = [(start, min(7, at - start)) for start in range(0, at, 7)]
    window = Window(1000, 1000, size)
    window.add("a", parts(1, buckets, runs), 0.0)
    pieces = []
    while found := window.next():
        pieces.append(found[1])
        window.done(*found)
    seen = {p.offset + i: p.offset + p.shift + i for p in pieces for i in range(p.nbytes)}
    assert seen == where
    assert sum(p.nbytes for p in pieces) == len(where)
    assert all(p.nbytes <= size for p in pieces)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=8),
)
def test_runs_cut_at_regions_keep_every_byte(runs: list[tuple[int, int]], gaps: list[tuple[int, int]]) -> None:
    """Each byte is once in a part or in what is missing, where it was; a part lies within one region."""
    regions, end = [], 0
    for gap, length in gaps:
        regions.append((end + gap, length))
        end += gap + length
    placed, offset = [], 0
    for address, nbytes in runs:
        placed.append(Placed(offset, nbytes, address))
        offset += nbytes + 1
    parts, missing = confined(placed, reversed(regions))
    owner = {at: number for number, (start, length) in enumerate(regions) for at in range(start, start + length)}
    bytes_of = {run.offset + at: run.address + at for run in placed for at in range(run.nbytes)}
    found = [(part.offset + at, part.address + at) for part in (*parts, *missing) for at in range(part.nbytes)]
    assert sorted(found) == sorted(bytes_of.items())
    for part in parts:
        assert len({owner[part.address + at] for at in range(part.nbytes)}) == 1
    assert not any(part.address + at in owner for part in missing for at in range(part.nbytes))
