"""What is no copy is named with its reason, what is not covered is refused, and no half of a pair is dropped."""

import re

import pytest
import torch

from tests.layouts import families
from tests.layouts.conftest import Ask
from tests.layouts.others import BASE, config_of
from weightsync.convert.program import CopyProgram
from weightsync.convert.replay import Replayer
from weightsync.convert.verify import random_tensor
from weightsync.errors import InputError

pytestmark = pytest.mark.timeout(240)

BETA = "model.layers.0.mlp.act_fn.beta"
FUSED = "model.layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight"
QUERY, KEY = (f"model.layers.0.self_attn.{part}.weight" for part in ("q_a_proj", "kv_a_proj_with_mqa"))


def test_computed_parameters_are_left_to_load_weights(ask: Ask) -> None:
    """Gemma's norms are stored less one: the operation and the tensors are named, all else is copied."""
    answer = ask({"op": "make", "config": config_of("gemma"), "cut": {"tp": 2}, "rank": 1})
    program = CopyProgram.model_validate(answer["program"])
    norm = next(group for group in program.by_loading if group.parameters == ("model.norm.weight",))
    assert norm.tensors == ("model.norm.weight",)
    assert "computed by add_" in norm.reason
    left = {name for group in program.by_loading for name in group.parameters}
    assert left == {row.name for row in program.layout.parameters if "norm" in row.name}
    assert answer["row"]["checked"] == len(program.layout.parameters) - len(left)


def test_a_tensor_that_goes_into_a_buffer_is_refused_by_name(ask: Ask) -> None:
    """No engine hands out buffers by name: the activation's beta of a model whose alphas are parameters."""
    config = {**BASE, "architectures": ["ApertusForCausalLM"], "model_type": "apertus", "hidden_act": "xielu"}
    answer = ask({"op": "make", "config": config, "cut": {"tp": 2}, "rank": 0})
    assert answer["refused"].startswith(f"{BETA} is loaded into the buffer {BETA}")


def test_a_parameter_without_a_tensor_is_refused_by_name(ask: Ask) -> None:
    """The checkpoint lacks a norm: its parameter would be zero in the replica."""
    family = families.llama()
    tensors = [row for row in family.tensors if row[0] != "model.norm.weight"]
    answer = ask({"op": "make", "config": family.config, "tensors": tensors, "cut": {}, "rank": 0})
    assert "writes nothing of the checkpoint into model.norm.weight" in answer["refused"]


def test_a_parameter_that_is_partly_written_is_refused_by_name(ask: Ask) -> None:
    """The checkpoint lacks one expert: a part of the experts' parameters has no value."""
    family = families.qwen3_moe()
    tensors = [row for row in family.tensors if "layers.1.mlp.experts.3.up_proj" not in row[0]]
    answer = ask({"op": "make", "config": family.config, "tensors": tensors, "cut": {}, "rank": 0})
    assert "only part of model.layers.1.mlp.experts.w13_weight" in answer["refused"]


def test_sglangs_own_refusal_is_passed_on(ask: Ask) -> None:
    """Its words, and what was asked."""
    family = families.llama()
    answer = ask({"op": "make", "config": family.config, "tensors": family.tensors, "cut": {"tp": 3}, "rank": 0})
    assert "builds no rank 0" in answer["refused"]
    assert "--tp 3" in answer["refused"]
    assert re.search(r"AssertionError \(at .*llama\.py:\d+: assert .*tp", answer["refused"])  # it says nothing itself


def test_flags_that_sglang_does_not_take_are_refused_in_its_words(ask: Ask) -> None:
    """The parser would end the process; one line of what it prints says why."""
    family = families.llama()
    request = {"op": "make", "config": family.config, "tensors": family.tensors, "cut": {}, "rank": 0}
    answer = ask({**request, "flags": ["--no-such-flag"]})
    assert re.fullmatch(r"SGLang [\d.]+ does not take --no-such-flag: .*unrecognized arguments: --no-such-flag",
                        answer["refused"])  # fmt: skip


def test_load_weights_drops_half_a_pair_in_silence(ask: Ask) -> None:
    """The reason why these load together: alone, the parameter stays as it was, and nothing is raised."""
    family = families.deepseek_v3()
    request = {"op": "load_some", "config": family.config, "tensors": family.tensors, "cut": {"tp": 2}, "rank": 0}
    assert FUSED not in ask({**request, "only": [QUERY]})["changed"]
    assert FUSED not in ask({**request, "only": [KEY]})["changed"]
    assert FUSED in ask({**request, "only": [QUERY, KEY]})["changed"]


def test_half_a_pair_is_refused_by_us(ask: Ask) -> None:
    """The trace found that they load together; a publish without one of them ends with its name."""
    family = families.deepseek_v3()
    answer = ask({"op": "make", "config": family.config, "tensors": family.tensors, "cut": {"tp": 2}, "rank": 0})
    program = CopyProgram.model_validate(answer["program"])
    assert sorted((QUERY, KEY)) in [sorted(group) for group in program.together]
    replayer = Replayer(program, memoryview(bytearray(program.layout.nbytes)))
    for tensor in program.tensors:
        if tensor.name != KEY:
            replayer.feed(tensor.name, random_tensor(tensor))
    with pytest.raises(InputError, match="kv_a_proj_with_mqa"):
        replayer.finish()
    replayer.close()


def test_a_pair_fed_apart_is_copied_all_the_same(ask: Ask) -> None:
    """By copies the order does not matter: the parameter holds both halves, whichever came first."""
    family = families.deepseek_v3()
    answer = ask({"op": "make", "config": family.config, "tensors": family.tensors, "cut": {"tp": 2}, "rank": 0})
    program = CopyProgram.model_validate(answer["program"])
    payload = bytearray(program.layout.nbytes)
    replayer = Replayer(program, memoryview(payload))
    tensors = {tensor.name: random_tensor(tensor) for tensor in program.tensors}
    for name in [KEY, *(name for name in tensors if name not in (KEY, QUERY)), QUERY]:
        replayer.feed(name, tensors[name])
    replayer.finish()
    replayer.close()
    row = next(row for row in program.layout.parameters if row.name == FUSED)
    wanted = torch.cat([tensors[QUERY], tensors[KEY]]).view(torch.uint8).numpy().tobytes()
    assert bytes(payload[row.offset : row.offset + row.nbytes]) == wanted
