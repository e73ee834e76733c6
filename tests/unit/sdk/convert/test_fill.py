"""Joining and cutting copies changes no byte's place, and buckets are left exactly when they are full."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.buckets import Bucket
from weightsync.convert.fill import BucketIndex, Move, join, portions, split
from weightsync.convert.program import Piece, TensorCopies
from weightsync.errors import InputError
from weightsync.layout import ITEMSIZE

Places = dict[tuple[int, ...], int]


def places(moves: list[Move]) -> Places:
    """First byte in the payload of each element of the tensor; no element twice."""
    found: Places = {}
    for move in moves:
        for index in itertools.product(*(range(start, stop) for start, stop in move.box)):
            steps = zip(index, move.box, move.strides, strict=True)
            assert index not in found
            found[index] = move.offset + sum((i - start) * stride for i, (start, _), stride in steps)
    return found


@st.composite
def copies(draw: st.DrawFn) -> list[Move]:
    """A box of a parameter, in any order of strides, cut into boxes along any dimensions and shuffled."""
    rank = draw(st.integers(0, 3))
    shape = [draw(st.integers(1, 4)) for _ in range(rank)]
    order = draw(st.permutations(range(rank)))
    dtype = draw(st.sampled_from(["float32", "uint8"]))
    strides, step = [0] * rank, ITEMSIZE[dtype]
    for d in order:
        strides[d] = step
        step *= shape[d] + draw(st.integers(0, 1))
    edges = []
    for extent in shape:
        inner = draw(st.sets(st.integers(1, extent - 1), max_size=3)) if extent > 1 else set()
        edges.append(sorted({0, extent, *inner}))
    boxes = itertools.product(*(list(itertools.pairwise(e)) for e in edges))
    base = draw(st.integers(0, 8)) * ITEMSIZE[dtype]
    moves = [
        Move(box, base + sum(start * s for (start, _), s in zip(box, strides, strict=True)), tuple(strides), dtype)
        for box in boxes
    ]
    # Some are missing, some land elsewhere: not everything can be put together again.
    far = draw(st.sets(st.integers(0, len(moves) - 1), max_size=2))
    moves = [m._replace(offset=m.offset + 8 * ITEMSIZE[dtype] * (i in far)) for i, m in enumerate(moves)]
    return draw(st.lists(st.sampled_from(moves), min_size=1, unique=True))


@given(copies())
def test_joining_keeps_every_element_in_its_place(moves: list[Move]) -> None:
    """However a copy was cut, the pieces put back together send each element to the same byte."""
    joined = join(moves)
    assert places(joined) == places(moves)
    assert len(joined) <= len(moves)


@given(copies(), st.sampled_from([3, 4, 10, 16]), st.integers(0, 5))
def test_cutting_at_buckets_keeps_every_element_in_its_place(moves: list[Move], size: int, first: int) -> None:
    """However small the buckets, nothing is lost, doubled or moved."""
    index = BucketIndex([Bucket(offset=first + at, nbytes=size) for at in range(0, 400, size)])
    parts = [part for move in moves for part in split(move, index)]
    assert places(parts) == places(moves)


@given(copies(), st.sampled_from([3, 4, 10, 16]))
def test_a_bucket_is_left_with_its_last_byte(moves: list[Move], size: int) -> None:
    """No portion after the one that leaves a bucket writes into it, and every bucket touched is left once."""
    index = BucketIndex([Bucket(offset=at, nbytes=size) for at in range(0, 400, size)])
    shape = tuple(max(move.box[d][1] for move in moves) for d in range(len(moves[0].box)))
    pieces = tuple(Piece(box=m.box, offset=m.offset, strides=m.strides, dtype=m.dtype) for m in moves)
    made = portions(TensorCopies(name="w", dtype=moves[0].dtype, shape=shape, pieces=pieces), index)
    item = ITEMSIZE[moves[0].dtype]
    left: set[int] = set()
    written: set[int] = set()
    for move, leaves in made:
        touched = {byte // size for place in places([move]).values() for byte in (place, place + item - 1)}
        assert not touched & left
        assert not set(leaves) & left
        left.update(leaves)
        written |= touched
    assert written <= left


def row(i: int, offset: int, *, width: int = 4, stride: int = 0) -> Move:
    """Row i of a float32 tensor of that width."""
    return Move(((i, i + 1), (0, width)), offset, (stride, 4), "float32")


@pytest.mark.parametrize(
    ("moves", "joined"),
    [
        pytest.param(
            [row(0, 0), row(1, 16), row(2, 32)],
            [Move(((0, 3), (0, 4)), 0, (16, 4), "float32")],
            id="a copy for each row becomes one",
        ),
        pytest.param(
            [row(2, 64), row(0, 0), row(1, 32)],
            [Move(((0, 3), (0, 4)), 0, (32, 4), "float32")],
            id="rows that land apart, in any order, become one strided copy",
        ),
        pytest.param(
            [row(0, 0), row(2, 16)], [row(0, 0), row(2, 16)], id="a row left out keeps its neighbours apart"
        ),
        pytest.param([row(1, 0), row(0, 16)], [row(1, 0), row(0, 16)], id="rows in the opposite order stay apart"),
        pytest.param(
            [row(0, 0), row(1, 16)._replace(dtype="uint8")],
            [row(0, 0), row(1, 16)._replace(dtype="uint8")],
            id="another dtype stays apart",
        ),
        pytest.param(
            [Move(((0, 2),), 0, (4,), "float32"), Move(((2, 4),), 8, (4,), "float32")],
            [Move(((0, 4),), 0, (4,), "float32")],
            id="two runs become one",
        ),
        pytest.param(
            [Move(((0, 2),), 0, (4,), "float32"), Move(((2, 4),), 12, (4,), "float32")],
            [Move(((0, 2),), 0, (4,), "float32"), Move(((2, 4),), 12, (4,), "float32")],
            id="a gap between runs keeps them apart",
        ),
        pytest.param(
            [Move(((0, 2),), 0, (4,), "float32"), Move(((2, 3),), 16, (0,), "float32")],
            [Move(((0, 2),), 0, (4,), "float32"), Move(((2, 3),), 16, (0,), "float32")],
            id="a single element further on stays apart",
        ),
        pytest.param([], [], id="nothing stays nothing"),
    ],
)
def test_what_is_joined(moves: list[Move], joined: list[Move]) -> None:
    """Neighbours in tensor and payload become one copy; nothing else does."""
    assert join(moves) == joined


def test_a_row_across_a_boundary_completes_the_bucket_before_it() -> None:
    """Rows of 12 bytes in buckets of 16: the first portion has two rows, the row that crosses included."""
    index = BucketIndex([Bucket(offset=at, nbytes=16) for at in range(0, 48, 16)])
    parts = split(Move(((0, 4), (0, 3)), 0, (12, 4), "float32"), index)
    assert [(part.box[0], part.offset) for part in parts] == [((0, 2), 0), ((2, 3), 24), ((3, 4), 36)]


def test_buckets_that_a_copy_touches() -> None:
    """Touching is sharing a byte: neither the end of one bucket nor a gap between two counts."""
    index = BucketIndex([Bucket(offset=20, nbytes=10), Bucket(offset=0, nbytes=10)])
    found = [list(index.touched(hull)) for hull in ((0, 1), (9, 10), (10, 20), (9, 21), (29, 40), (30, 40))]
    assert found == [[0], [0], [], [0, 1], [1], []]


def test_a_bucket_between_rows_is_left_too() -> None:
    """Nobody writes it, but the stage owns it; and where another copy does write it, not before that one has."""
    rows = [Piece(box=((0, 2),), offset=0, strides=(20,), dtype="uint8")]
    rows.append(Piece(box=((2, 4),), offset=4, strides=(36,), dtype="uint8"))
    index = BucketIndex([Bucket(offset=at, nbytes=4) for at in range(0, 44, 4)])
    made = portions(TensorCopies(name="w", dtype="uint8", shape=(4,), pieces=tuple(rows)), index)
    assert [move.offset for move, _ in made] == [0, 20, 4, 40]
    left = {bucket * 4: at for at, (_, leaves) in enumerate(made) for bucket in leaves}
    assert sorted(left) == list(range(0, 44, 4))
    assert left[20] > 0


def test_a_copy_onto_itself_is_refused() -> None:
    """A stride of zero along a longer dimension would keep the last element only."""
    piece = Piece(box=((0, 2),), offset=0, strides=(0,), dtype="uint8")
    with pytest.raises(InputError, match=r"tensor w.*the same bytes repeatedly"):
        portions(TensorCopies(name="w", dtype="uint8", shape=(2,), pieces=(piece,)), BucketIndex([]))
