"""Which checkpoint a program reads: alike for all ranks and parallelisms of a model, and for no other model."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.config import ModelConfig
from reference.programs import build_program
from weightsync.convert.checkpoint import checkpoint_digest
from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.convert.series import Series, fold
from weightsync.layout import lay_out

EXPERTS = 40


def tensors(held: set[int]) -> list[TensorCopies]:
    """Experts of which the rank holds some, and two tensors that belong to no series."""
    pieces = (Piece(((0, 4),), 0, (2,), "float16"),)
    experts = [
        TensorCopies(f"layers.0.experts.{number}.up.weight", "float16", (4,), pieces if number in held else ())
        for number in range(EXPERTS)
    ]
    return [*experts, TensorCopies("norm.weight", "float16", (4,), pieces), TensorCopies("{}.3", "float16", (4,), ())]


def digest(listed: list[TensorCopies]) -> str:
    """Of a program with these tensors."""
    return CopyProgram(layout=lay_out([("w", "float16", (64,))]), tensors=listed).checkpoint


@settings(max_examples=25)
@given(st.sets(st.integers(0, EXPERTS - 1)), st.randoms())
def test_neither_what_a_rank_holds_nor_the_order_matters(held: set[int], random: Random) -> None:
    """Series are cut where a rank's part begins and ends; the checkpoint is one all the same."""
    listed = tensors(held)
    random.shuffle(listed)
    assert digest(listed) == digest(tensors(set()))


def test_every_rank_of_every_parallelism_says_the_same() -> None:
    """Programs of one model for 1, 2 and 4 ranks."""
    config = ModelConfig(vocab=64, hidden=64, layers=12, heads=4, kv_heads=2, head_dim=16, intermediate=128)
    programs = [build_program(config, rank, tp) for tp in (1, 2, 4) for rank in range(tp)]
    assert len({program.digest for program in programs}) == len(programs)
    assert len({program.checkpoint for program in programs}) == 1


def _without(listed: list[TensorCopies]) -> list[TensorCopies]:
    return listed[:5] + listed[6:]


def _renamed(listed: list[TensorCopies]) -> list[TensorCopies]:
    return [listed[0]._replace(name="layers.1.experts.0.up.weight"), *listed[1:]]


def _cast(listed: list[TensorCopies]) -> list[TensorCopies]:
    return [*listed[:-2], listed[-2]._replace(dtype="float32"), listed[-1]]


def _wider(listed: list[TensorCopies]) -> list[TensorCopies]:
    return [listed[0]._replace(shape=(5,)), *listed[1:]]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_without, id="one expert less"),
        pytest.param(_renamed, id="another name"),
        pytest.param(_cast, id="another dtype"),
        pytest.param(_wider, id="another shape"),
    ],
)
def test_another_checkpoint_has_another_digest(change: Callable[[list[TensorCopies]], list[TensorCopies]]) -> None:
    """Each of name, dtype, shape and number counts."""
    assert digest(change(tensors(set()))) != digest(tensors(set()))


def test_a_series_that_counts_another_number_is_the_same_tensors() -> None:
    """Written by hand: the layer is counted, not the expert."""
    names = [f"layers.{layer}.experts.{number}" for layer in range(8, 12) for number in range(2)]
    single = fold(TensorCopies(name, "float16", (4,), ()) for name in names)
    byhand = [
        Series(name=f"layers.{{}}.experts.{number}", dtype="float16", shape=(4,), pieces=(), first=8, count=4)
        for number in range(2)
    ]
    assert checkpoint_digest(byhand) == checkpoint_digest(single)
