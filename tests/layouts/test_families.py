"""Every layout of the main families equals an independent slicing, byte for byte, on every rank."""

import hashlib
from typing import Any

import pytest
import torch

from tests.layouts import families
from tests.layouts.conftest import Ask, Json
from tests.layouts.families import Family
from tests.layouts.replaying import replayed
from tests.layouts.slicing import Rank, expected
from weightsync.convert.program import CopyProgram
from weightsync.convert.verify import random_tensor

pytestmark = pytest.mark.timeout(240)  # the first one waits for SGLang's import

SCALES = [
    (f"model.layers.1.self_attn.{part}_proj.{part}_scale", "float32", ()) for part in ("k", "v")
]  # fmt: skip

CASES: list[tuple[str, Family, Json]] = [
    ("llama on one rank", families.llama(), {"tp": 1}),
    ("llama whose four heads are cut over four ranks, key-value heads repeated", families.llama(), {"tp": 4}),
    ("llama in two pipeline stages", families.llama(), {"pp": 2}),
    ("qwen2 with biases", families.qwen2(), {"tp": 2}),
    ("qwen3 with repeated key-value heads", families.qwen3(), {"tp": 4}),
    ("qwen3 with tied embeddings", families.qwen3(tie_word_embeddings=True), {"tp": 1}),
    ("qwen3 with tied embeddings in two stages of two", families.qwen3(tie_word_embeddings=True), {"tp": 2, "pp": 2}),
    ("qwen3 in FP8 blocks", families.qwen3_fp8(), {"tp": 2}),
    ("qwen3-moe, experts cut over two ranks", families.qwen3_moe(), {"tp": 2}),
    ("qwen3-moe, experts in two groups of two ranks", families.qwen3_moe(), {"tp": 4, "ep": 2}),
    ("glm4-moe with shared experts and a layer that no rank holds", families.glm4_moe(), {"tp": 2}),
    ("deepseek-v3 with latent attention", families.deepseek_v3(), {"tp": 2}),
    ("deepseek-v3, experts in groups", families.deepseek_v3(), {"tp": 2, "ep": 2}),
    ("deepseek-v3 in FP8 blocks, without attention's scales", families.deepseek_v3_fp8(), {"tp": 2}),
    ("deepseek-v3 in FP8 blocks with a layer's attention scales", families.deepseek_v3_fp8(*SCALES), {"tp": 2}),
    ("gpt-oss with stacked experts, sinks and biases", families.gpt_oss(), {"tp": 2}),
]


def ranks() -> list[Any]:
    return [
        pytest.param(family, cut, rank, id=f"{title}, rank {rank}")
        for title, family, cut in CASES
        for rank in range(cut.get("tp", 1) * cut.get("pp", 1))
    ]


@pytest.mark.parametrize(("family", "cut", "rank"), ranks())
def test_a_rank_holds_its_slice(ask: Ask, family: Family, cut: Json, rank: int) -> None:
    """Random tensors, replayed, are what the parallel layers' definition says, and what load_weights makes."""
    answer = ask({"op": "make", "config": family.config, "tensors": family.tensors, "cut": cut, "rank": rank})
    assert "refused" not in answer, answer["refused"]
    program = CopyProgram.model_validate(answer["program"])
    held = replayed(program)
    given = {tensor.name: random_tensor(tensor) for tensor in program.tensors}
    wanted = expected(family.name, family.config, given, Rank(rank, **cut))
    assert set(held) == set(wanted)
    for row in program.layout.parameters:
        value = wanted[row.name].to(getattr(torch, row.dtype)).contiguous()
        assert tuple(value.shape) == row.shape, row.name
        assert held[row.name] == bytes(value.flatten().view(torch.uint8).numpy()), row.name
    digests = {name: hashlib.blake2b(data, digest_size=16).hexdigest() for name, data in held.items()}
    assert digests == answer["digests"]
    assert answer["row"]["byLoading"] == []
    assert answer["row"]["checked"] == sum(1 for value in wanted.values() if value.any())


def test_pieces_are_few(ask: Ask) -> None:
    """One strided copy for each tensor that a rank holds, however SGLang's loaders went about it."""
    for family, cut in ((families.qwen3_moe(), {"tp": 4, "ep": 2}), (families.gpt_oss(), {"tp": 2})):
        answer = ask({"op": "make", "config": family.config, "tensors": family.tensors, "cut": cut, "rank": 0})
        assert answer["row"]["pieces"] == answer["row"]["held"]


def test_parameters_lie_in_the_order_of_the_model(ask: Ask) -> None:
    """A trainer that yields the model's tensors in order fills the arena from its start to its end."""
    family = families.qwen3()
    answer = ask({"op": "make", "config": family.config, "tensors": family.tensors, "cut": {}, "rank": 0})
    program = CopyProgram.model_validate(answer["program"])
    first = [min(piece.offset for piece in tensor.pieces) for tensor in program.tensors]
    assert first == sorted(first)
    assert program.tensors[0].name == "model.embed_tokens.weight"
    assert program.tensors[-1].name == "lm_head.weight"


def test_what_goes_nowhere_is_listed_without_pieces(ask: Ask) -> None:
    """Layers of other stages, experts of other ranks and layers for speculation are known and not copied."""
    family = families.glm4_moe()
    answer = ask({"op": "make", "config": family.config, "tensors": family.tensors, "cut": {"tp": 2}, "rank": 1})
    program = CopyProgram.model_validate(answer["program"])
    idle = {tensor.name for tensor in program.tensors if not tensor.pieces}
    assert idle == {name for name, _, _ in family.tensors if name.startswith("model.layers.2.")}
    assert len(program.tensors) == len(family.tensors)


def test_flags_of_sglang_decide_how_an_engine_is_cut(ask: Ask) -> None:
    """With attention in data parallel ranks each of two ranks holds whole attention, and half of every expert."""
    family = families.qwen3_moe()
    request = {"op": "make", "config": family.config, "tensors": family.tensors, "cut": {"tp": 2}, "rank": 1}
    answer = ask({**request, "flags": ["--enable-dp-attention", "--dp", "2"]})
    assert "refused" not in answer, answer["refused"]
    program = CopyProgram.model_validate(answer["program"])
    shapes = {row.name: row.shape for row in program.layout.parameters}
    assert shapes["model.layers.0.self_attn.qkv_proj.weight"] == (128, 64)
    assert shapes["model.layers.0.mlp.experts.w13_weight"] == (8, 32, 64)
    digests = {name: hashlib.blake2b(data, digest_size=16).hexdigest() for name, data in replayed(program).items()}
    assert digests == answer["digests"]
