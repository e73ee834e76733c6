"""Stages own every byte of a layout once, and what they own is cut into buckets without loss."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.buckets import (
    MIN_BUCKET,
    MIN_BUCKETS,
    PAGE,
    Bucket,
    Extent,
    assign,
    bucket_size,
    cut,
    merge,
    shard,
)
from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.errors import CoverageError
from weightsync.layout import lay_out
from weightsync.testing import plain_program

EXTENTS = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 900)), max_size=8).map(
    lambda pairs: [(start, start + length) for start, length in pairs]
)


def covered(extents: list[Extent]) -> set[int]:
    """The bytes."""
    return {byte for start, stop in extents for byte in range(start, stop)}


@given(EXTENTS, st.integers(0, 300))
def test_merging_loses_nothing_and_closes_small_gaps_only(spans: list[Extent], gap: int) -> None:
    """Sorted, apart by at least the gap; what was added lies in gaps that are smaller."""
    merged = merge(spans, gap)
    assert covered(spans) <= covered(merged)
    for (_, stop), (start, _) in pairwise(merged):
        assert start - stop >= gap
    assert covered(merge(spans, 0)) == covered(spans)
    added = sorted(covered(merged) - covered(spans))
    ends = {stop for _, stop in spans}
    run = 0
    for byte in added:
        run = 1 if byte in ends else run + 1
        assert run < max(gap, 1)


@given(EXTENTS, st.sampled_from([1, 7, 64, 4096]))
def test_buckets_cover_the_extents_exactly(spans: list[Extent], size: int) -> None:
    """Each inside one extent, none over ``size``, boundaries on multiples of it, no byte twice."""
    extents = merge(spans)
    buckets = cut(extents, size)
    found = [(b.offset, b.offset + b.nbytes) for b in buckets]
    assert covered(found) == covered(extents)
    assert sum(b.nbytes for b in buckets) == len(covered(extents))
    for start, stop in found:
        assert stop - start <= size
        assert start // size == (stop - 1) // size
        assert any(a <= start and stop <= b for a, b in extents)


@given(st.integers(1, 2**44), st.integers(PAGE, 2**30))
def test_the_size_of_a_bucket(total: int, limit: int) -> None:
    """Whole pages, at most the limit, and so many buckets that filling, writing and checking overlap."""
    size = bucket_size(total, limit)
    assert PAGE <= size <= limit
    assert size % PAGE == 0
    if size > MIN_BUCKET:
        assert size * (MIN_BUCKETS - 1) <= total + MIN_BUCKETS * PAGE


@pytest.mark.parametrize(
    ("total", "limit", "size"),
    [
        pytest.param(100 * 2**30, 512 * 2**20, 512 * 2**20, id="a large replica has buckets of the limit"),
        pytest.param(2**33, 512 * 2**20, 128 * 2**20, id="a smaller one has 64"),
        pytest.param(2**30, 512 * 2**20, 32 * 2**20, id="not so many that they are small"),
        pytest.param(2**24, 512 * 2**20, 2**20, id="a small one has sixteen"),
        pytest.param(2**16, 512 * 2**20, MIN_BUCKET, id="a tiny one is not cut finer than is worth it"),
        pytest.param(2**16, 10000, 8192, id="a small limit is rounded down to pages"),
    ],
)
def test_sizes_by_example(total: int, limit: int, size: int) -> None:
    """Bytes."""
    assert bucket_size(total, limit) == size


MODEL = plain_program(dict.fromkeys(("embed", "a", "b", "norm"), ("float32", (64,))))


def named(stages: dict[int, str]) -> dict[int, frozenset[str]]:
    """Stages from words."""
    return {stage: frozenset(names.split()) for stage, names in stages.items()}


@pytest.mark.parametrize(
    ("stages", "owned"),
    [
        pytest.param({0: "embed a b norm"}, {0: "embed a b norm"}, id="one stage has all"),
        pytest.param({0: "embed a", 1: "b norm"}, {0: "embed a", 1: "b norm"}, id="two stages have a half each"),
        pytest.param(
            {0: "embed a", 1: "embed b norm"}, {0: "embed a", 1: "b norm"}, id="a tied tensor goes to the lowest"
        ),
        pytest.param(
            {0: "embed a b norm", 1: "embed a"}, {0: "embed a b norm", 1: ""}, id="a stage may own nothing"
        ),
        pytest.param(
            {0: "embed a b norm other"}, {0: "embed a b norm"}, id="a name that the rank does not need is nobody's"
        ),
    ],
)  # fmt: skip
def test_who_owns_what(stages: dict[int, str], owned: dict[int, str]) -> None:
    """Every tensor has one owner, and the shards cover the layout once."""
    assert assign(MODEL, named(stages)) == named(owned)


def test_a_gap_is_refused_by_name() -> None:
    """The first tensors that no stage publishes, and how many more."""
    with pytest.raises(CoverageError, match="no trainer stage publishes embed, a, b and 1 more, which rank 0 needs"):
        assign(MODEL, {0: frozenset()})


def test_tensors_that_load_together_stay_together() -> None:
    """Parted over stages they are refused by name."""
    program = MODEL.model_copy(update={"together": (("a", "b"),)})
    with pytest.raises(CoverageError, match="a and b must be published by the same stage"):
        assign(program, named({0: "embed a", 1: "b norm"}))
    assign(program, named({0: "embed", 1: "a b norm"}))


def test_one_parameter_interleaved_by_two_stages_is_refused() -> None:
    """Its extents overlap: no bucket could be filled by one stage alone."""
    layout = lay_out([("fused", "float32", (4, 2))])
    halves = tuple(
        TensorCopies(
            name=name, dtype="float32", shape=(4,),
            pieces=(Piece(box=((0, 4),), offset=offset, strides=(8,), dtype="float32"),),
        )
        for name, offset in (("gate", 0), ("up", 4))
    )  # fmt: skip
    program = CopyProgram(layout=layout, tensors=halves)
    with pytest.raises(CoverageError, match="parameter fused is fed by stages 0 and 1"):
        assign(program, named({0: "gate", 1: "up"}))
    assert assign(program, named({0: "gate up"})) == {0: frozenset({"gate", "up"})}


@given(st.sets(st.sampled_from(["embed", "a", "b", "norm"])), st.sampled_from([PAGE, 2 * PAGE]))
def test_shards_of_all_stages_are_the_whole(first: set[str], size: int) -> None:
    """However the tensors are shared out, every parameter's byte lies in exactly one bucket of one stage."""
    rest = {"embed", "a", "b", "norm"} - first
    owned = assign(MODEL, {0: frozenset(first), 1: frozenset(rest)})
    buckets: list[Bucket] = [b for names in owned.values() for b in cut(shard(MODEL, names), size)]
    inside = [byte for b in buckets for byte in range(b.offset, b.offset + b.nbytes)]
    assert len(inside) == len(set(inside))
    assert set(inside) >= {byte for p in MODEL.layout.parameters for byte in range(p.offset, p.offset + p.nbytes)}
