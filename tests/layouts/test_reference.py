"""The reference engine slices as SGLang does: what is shown with it, without a GPU, is shown of a real layout."""

import pytest

from reference.config import ModelConfig, checkpoint_shapes
from reference.programs import build_program
from tests.layouts.conftest import Ask
from weightsync.convert.program import CopyProgram
from weightsync.layout import first_difference

pytestmark = pytest.mark.timeout(240)  # the first one waits for SGLang's import

# Vocabularies are padded to multiples of 64 there; the reference engine's are not.
MODEL = ModelConfig(vocab=256, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=128)
CUTS = [(1, 0), (2, 0), (2, 1), (4, 1), (4, 3)]


@pytest.mark.parametrize(("tp", "rank"), CUTS, ids=[f"rank {rank} of {tp}" for tp, rank in CUTS])
def test_sglangs_program_is_the_reference_engines(ask: Ask, tp: int, rank: int) -> None:
    """The same parameters at the same bytes, filled by the same copies: one digest, so that either serves the other.

    Of four ranks two share each key-value head.
    """
    ours = build_program(MODEL, rank, tp)
    tensors = [(name, "float32", shape) for name, shape in checkpoint_shapes(MODEL).items()]
    answer = ask({
        "op": "make", "config": MODEL.to_json(), "tensors": tensors, "cut": {"tp": tp}, "rank": rank,
        "flags": ["--dtype", "float32"],
    })  # fmt: skip
    assert "refused" not in answer, answer["refused"]
    theirs = CopyProgram.model_validate(answer["program"])
    assert first_difference(ours.layout, theirs.layout) is None
    assert sorted(ours.tensors) == sorted(theirs.tensors)
    assert ours.digest == theirs.digest
