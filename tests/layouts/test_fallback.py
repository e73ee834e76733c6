"""What is no copy is filled by a real SGLang's load_weights, in the trainer's arena, beside what is copied."""

import pytest

from tests.layouts.conftest import Ask
from tests.layouts.others import BASE, TIED

GEMMA = {
    **BASE, **TIED, "architectures": ["GemmaForCausalLM"], "model_type": "gemma",
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip

pytestmark = pytest.mark.timeout(240)  # the first one waits for SGLang's import


@pytest.mark.parametrize("rank", [0, 1])
def test_gemmas_norms_are_loaded_into_the_arena(ask: Ask, rank: int) -> None:
    """SGLang adds 1 to them. Replayed from a program that knows the model by its config alone, publish after publish,
    every parameter holds what load_weights of the whole checkpoint leaves; the note names what is loaded.
    """
    answer = ask({"op": "replay", "config": GEMMA, "cut": {"tp": 2}, "rank": rank})
    assert "refused" not in answer, answer["refused"]
    assert answer["held"] == answer["loaded"]
    norms = [name for name in answer["loaded"] if "norm" in name]
    assert answer["note"].startswith(f"{len(norms)} parameters of rank {rank} are no copy of the checkpoint")
    assert all(name in answer["note"] for name in norms)
