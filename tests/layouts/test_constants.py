"""What SGLang sets itself: engine and layout agree on what a version brings, whether or not the checkpoint has it."""

import pytest

from tests.layouts import families
from tests.layouts.conftest import Ask
from weightsync.convert.program import CopyProgram
from weightsync_agent.engines.base import Description, description_problem

pytestmark = pytest.mark.timeout(240)  # the first one waits for SGLang's import

SCALES = [f"model.layers.{layer}.self_attn.{part}_proj.{part}_scale" for layer in range(2) for part in "kv"]
MQA = [f"model.layers.{layer}.self_attn.attn_mqa.{part}_scale" for layer in range(2) for part in "kv"]
MHA = [name.replace("mqa", "mha") for name in MQA]


def asked(ask: Ask, *scales: str) -> tuple[Description, CopyProgram]:
    """The loaded model of rank 1 as the hook describes it, and its program."""
    family = families.deepseek_v3_fp8(*((name, "float32", ()) for name in scales))
    answer = ask({"op": "describe", "config": family.config, "tensors": family.tensors, "cut": {"tp": 2}, "rank": 1})
    assert "refused" not in answer, answer["refused"]
    described = Description.model_validate({**answer["described"], "incarnation": "1-1", "repacked": ""})
    return described, CopyProgram.model_validate(answer["program"])


def test_scales_that_sglang_sets_are_in_no_layout_and_no_difference(ask: Ask) -> None:
    """All of attention's are 1 after its post-load step, and the agent takes the engine for the layout's."""
    described, program = asked(ask)
    constants = {p.name: p.constant for p in described.parameters if p.constant is not None}
    assert constants == dict.fromkeys((*MQA, *MHA), 1.0)
    assert not {row.name for row in program.layout.parameters} & set(constants)
    assert description_problem(described, program.layout) == ""


def test_scales_of_the_checkpoint_are_rows(ask: Ask) -> None:
    """Those that it fills; its neighbour for prefill stays SGLang's own."""
    described, program = asked(ask, *SCALES)
    constants = {p.name: p.constant for p in described.parameters if p.constant is not None}
    assert {name for name, value in constants.items() if value == 1.0} == set(MHA)
    assert {row.name for row in program.layout.parameters} >= set(MQA)
    assert description_problem(described, program.layout) == ""


def test_an_engine_with_scales_of_its_own_checkpoint_is_another_layouts(ask: Ask) -> None:
    """They would stay as they are through every version, in this engine and in no other."""
    described, _ = asked(ask, *SCALES)
    _, program = asked(ask)
    assert "attn_mqa.k_scale is" in description_problem(described, program.layout)
