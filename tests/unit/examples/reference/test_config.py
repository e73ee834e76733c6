"""The sizes of a model, its tensors and their owners."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.config import EMBED, HEAD, NORM, ModelConfig, checkpoint_shapes, stage_names
from weightsync.errors import InputError


def test_config_json_gives_back_the_config(config: ModelConfig) -> None:
    """Writing and reading config.json loses nothing."""
    assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_head_dim_may_be_left_out(config: ModelConfig) -> None:
    """Hidden size over heads stands in for it, as older checkpoints mean it."""
    document = config.to_json()
    del document["head_dim"]
    assert ModelConfig.from_json(document).head_dim == config.hidden // config.heads


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        pytest.param({"model_type": "gpt2"}, "model_type 'gpt2' is not supported", id="another kind of model"),
        pytest.param({"num_key_value_heads": 3}, "4 heads cannot share 3 KV heads", id="heads that do not divide"),
        pytest.param({"head_dim": 7}, "head_dim 7 must be even", id="odd head_dim"),
        pytest.param({"vocab_size": 0}, "vocab is 0", id="no vocabulary"),
        pytest.param({"rms_norm_eps": None}, "key 'rms_norm_eps' is missing", id="missing key"),
    ],
)
def test_a_wrong_config_is_refused_with_a_sentence(
    config: ModelConfig, change: dict[str, Any], sentence: str
) -> None:
    """The message names file and field."""
    document = config.to_json() | change
    document = {key: value for key, value in document.items() if value is not None}
    with pytest.raises(InputError, match=sentence):
        ModelConfig.from_json(document)


def test_an_unreadable_config_names_its_path(tmp_path: Path) -> None:
    """A missing file is an InputError, not an OSError."""
    with pytest.raises(InputError, match=r"config\.json: cannot be read"):
        ModelConfig.load(tmp_path)


@given(st.data(), st.integers(1, 9), st.booleans())
def test_stages_own_every_tensor_once(data: st.DataObject, layers: int, tied: bool) -> None:
    """The stages' names, one after the other, are the checkpoint's names in its order, for any number of stages."""
    config = ModelConfig(vocab=8, hidden=8, layers=layers, heads=2, kv_heads=1, head_dim=4, intermediate=8, tied=tied)
    stages = data.draw(st.integers(1, layers))
    parts = [stage_names(config, stage, stages) for stage in range(stages)]
    assert [name for part in parts for name in part] == list(checkpoint_shapes(config))
    assert EMBED in parts[0]
    assert NORM in parts[-1]
    assert (HEAD in parts[-1]) is not tied


def test_a_stage_that_does_not_exist_is_refused(config: ModelConfig) -> None:
    """More stages than layers would leave one with nothing."""
    with pytest.raises(InputError, match="stage 0 of 3 does not exist in a model of 2 layers"):
        stage_names(config, 0, 3)


def test_the_config_is_frozen(config: ModelConfig) -> None:
    """It may be shared between threads."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.vocab = 3  # type: ignore[misc]
