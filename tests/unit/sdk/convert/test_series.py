"""Series: many tensors as one record, and the very same tensors again."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightsync.bounds import PROGRAM
from weightsync.buckets import assign, needed
from weightsync.convert.program import CopyProgram, Piece, TensorCopies, grouped
from weightsync.convert.series import SHORTEST, fold
from weightsync.errors import InputError
from weightsync.layout import lay_out

ROW = 8


def expert(number: int, at: int, part: str = "up", layer: int = 0) -> TensorCopies:
    """One row of (4,) float16, at byte ``at``; of at < 0 the rank holds nothing."""
    pieces = (Piece(((0, 4),), at, (2,), "float16"),) if at >= 0 else ()
    return TensorCopies(f"layers.{layer}.experts.{number}.{part}.weight", "float16", (4,), pieces)


def program(tensors: list[TensorCopies], nbytes: int = 4096, **more: Any) -> CopyProgram:
    """Of one big parameter."""
    return CopyProgram(layout=lay_out([("w", "float16", (nbytes // 2,))]), tensors=tensors, **more)


def test_experts_become_one_record_for_each_of_their_weights() -> None:
    """Of 2 layers with 30 experts of 3 weights, in the checkpoint's order: 6 records, and all 180 tensors again."""
    tensors = [
        expert(number, (number * 3 + part) * ROW + layer * 1024, name, layer)
        for layer in range(2)
        for number in range(30)
        for part, name in enumerate(("down", "gate", "up"))
    ]
    made = program(tensors)
    assert len(made.copies.series) == 6
    assert sorted(made.tensors) == sorted(tensors)
    assert len(made.tensors) == 180
    again = CopyProgram.read(made.canonical(), "again")
    assert (again, again.digest) == (made, made.digest)
    assert len(made.canonical()) < 2000


def test_a_rank_with_some_of_the_experts() -> None:
    """Expert parallelism: those that other ranks hold are series without copies."""
    tensors = [expert(number, (number - 16) * ROW if 16 <= number < 32 else -1) for number in range(64)]
    made = program(tensors)
    assert [(each.first, each.count, len(each.pieces)) for each in made.copies.series] == [
        (0, 16, 0), (16, 16, 1), (32, 32, 0),
    ]  # fmt: skip
    assert list(made.tensors) == tensors


@settings(max_examples=200)
@given(
    places=st.dictionaries(
        st.tuples(st.sampled_from(["up", "down"]), st.integers(0, 40)), st.integers(-1, 60), max_size=60
    ),
    even=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_any_tensors_come_back(places: dict[tuple[str, int], int], even: bool, order: Random) -> None:
    """Whatever the numbers, gaps, steps and order: the same tensors; written out one by one, the same program."""
    tensors = [
        expert(n, (n * ROW if even else at * ROW) if at >= 0 else -1, part) for (part, n), at in places.items()
    ]
    order.shuffle(tensors)
    made = program(tensors)
    assert sorted(made.tensors) == sorted(tensors)
    assert all(each.count == 1 or each.count >= SHORTEST for each in made.copies.series)
    plain = json.loads(made.canonical()) | {
        "tensors": [
            {"name": t.name, "dtype": t.dtype, "shape": t.shape, "pieces": [p._asdict() for p in t.pieces]}
            for t in tensors
        ]
    }
    assert CopyProgram.read(json.dumps(plain), "plain").digest == made.digest


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([f"w{number}" for number in range(20)], id="no number of its own between dots"),
        pytest.param([f"w.0{number}" for number in range(1, 10)], id="a leading zero, which would be lost"),
        pytest.param([f"w.{{}}.{number}" for number in range(20)], id="the mark of a place in the name itself"),
        pytest.param([f"w.{number * 2}" for number in range(20)], id="every other number"),
        pytest.param([f"w.{number}" for number in range(SHORTEST - 1)], id="few"),
    ],
)
def test_what_is_no_series_is_written_out(names: list[str]) -> None:
    """And comes back in its order."""
    tensors = [TensorCopies(name, "int8", (), ()) for name in names]
    folded = fold(tensors)
    assert [each.count for each in folded] == [1] * len(names)
    assert list(program(tensors).tensors) == tensors


def series(**changes: Any) -> str:
    """A program of one series of ten rows."""
    tensor = {
        "name": "e.{}.w", "dtype": "float16", "shape": [4], "first": 0, "count": 10,
        "pieces": [{"box": [[0, 4]], "offset": 0, "strides": [2], "dtype": "float16", "step": 8}],
    } | changes  # fmt: skip
    layout = lay_out([("w", "float16", (40,))])
    return json.dumps({"layout": layout.model_dump(mode="json"), "tensors": [tensor]})


PIECE = {"box": [[0, 4]], "offset": 0, "strides": [2], "dtype": "float16"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(series(pieces=[PIECE | {"step": 64}]), "reaches byte 584 of", id="its last tensor past the end"),
        pytest.param(series(pieces=[PIECE | {"step": 7}]), "not multiples of float16's 2 bytes", id="an odd step"),
        pytest.param(series(name="e.w"), "must stand once in its name", id="no place for the number"),
        pytest.param(series(name="e.{}.{}"), "must stand once in its name", id="two places for the number"),
        pytest.param(series(count=2**40), "count", id="more tensors than any model has"),
        pytest.param(series(count=0), "count", id="none"),
    ],
)
def test_series_that_cannot_be(text: str, words: str) -> None:
    """Refused when read, before a single tensor of it is made out."""
    with pytest.raises(InputError, match=words):
        CopyProgram.read(text, "test")


def test_many_series_are_counted_together() -> None:
    """Each within the bound, all of them past it: refused in time."""
    document = json.loads(series(count=2**19, pieces=[]))
    document["tensors"] = [document["tensors"][0] | {"name": f"{part}.{{}}"} for part in "abc"]
    with pytest.raises(InputError, match="more than 1048576 tensors"):
        CopyProgram.read(json.dumps(document), "test")


def test_a_series_and_a_tensor_of_the_same_name_are_refused() -> None:
    """e.3.w of the series, and once more by itself."""
    document = json.loads(series())
    document["tensors"].append(document["tensors"][0] | {"name": "e.3.w", "count": 1, "first": 0})
    with pytest.raises(InputError, match=r"e\.3\.w appears twice"):
        CopyProgram.read(json.dumps(document), "test")


LOADED = [TensorCopies("scale", "float32", (), ()), TensorCopies("w.q", "float16", (4,), ())]
PLACES = lay_out([("copied", "float16", (4,)), ("a", "float16", (8,)), ("b", "float32", ())])
COPIED = TensorCopies("copied", "float16", (4,), (Piece(((0, 4),), 0, (2,), "float16"),))
GROUP = {"tensors": ["scale", "w.q"], "parameters": ["a", "b"], "reason": "a is w.q times scale"}


def loading(groups: list[dict[str, Any]], **more: Any) -> CopyProgram:
    """One copied tensor, two that are loaded."""
    given = {"engine": "{}"} | more
    return CopyProgram(layout=PLACES, tensors=[COPIED, *LOADED], by_loading=groups, **given)


def test_what_is_loaded_fills_its_parameters_when_all_of_it_is_there() -> None:
    """Each tensor of the group stands for the whole of the parameters: of one stage, and in the coverage."""
    made = loading([GROUP])
    assert [made.spans(tensor) for tensor in made.tensors] == [[(0, 8)], *[[(256, 272), (512, 516)]] * 2]
    assert needed(made) == [(0, 8), (256, 272), (512, 516)]
    assert assign(made, {0: frozenset({"copied"}), 1: frozenset({"scale", "w.q"})})[1] == {"scale", "w.q"}
    assert CopyProgram.read(made.canonical(), "again").digest == made.digest != loading([]).digest


@pytest.mark.parametrize(
    ("groups", "more", "words"),
    [
        pytest.param([GROUP], {"engine": ""}, "byLoading without engine", id="nothing to build a replica from"),
        pytest.param([GROUP | {"tensors": ["k"]}], {}, "byLoading names k", id="an unknown tensor"),
        pytest.param([GROUP | {"parameters": ["c"]}], {}, "c, which is no parameter", id="an unknown parameter"),
        pytest.param([GROUP | {"tensors": ["copied"]}], {}, "copied is both copied and loaded", id="also copied"),
        pytest.param([GROUP, GROUP], {}, "a, which is written by two groups", id="a parameter of two groups"),
        pytest.param([GROUP, GROUP | {"parameters": ["copied"]}], {}, "scale twice", id="a tensor in two groups"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be(groups: list[dict[str, Any]], more: dict[str, str], words: str) -> None:
    """Refused with the name."""
    with pytest.raises(ValueError, match=words):
        loading(groups, **more)


def test_where_it_comes_from_is_not_what_it_is() -> None:
    """Two releases that make a replica in the same way share it."""
    assert program([], origin="sglang 1").digest == program([], origin="sglang 2").digest


def test_parameters_that_share_a_tensor_are_loaded_together() -> None:
    """a and c share "y", c and d share "z": one call loads all three; b is loaded by itself. Operations once each."""
    rows = [
        ("a", ("x", "y"), "aten.mul"), ("b", ("v",), "aten.exp"), ("d", ("z",), "aten.add"),
        ("c", ("y", "z"), "aten.mul"),
    ]  # fmt: skip
    found = {frozenset(g.parameters): (frozenset(g.tensors), g.reason) for g in grouped(rows)}
    assert found == {
        frozenset({"b"}): (frozenset({"v"}), "aten.exp"),
        frozenset({"a", "c", "d"}): (frozenset({"x", "y", "z"}), "aten.add, aten.mul"),
    }


def test_a_program_longer_than_any_is_not_parsed() -> None:
    """Its records would take gigabytes."""
    with pytest.raises(InputError, match=r"^x: has \d+ bytes, a copy program at most \d+$"):
        CopyProgram.read(b"[" * (PROGRAM + 1), "x")
