"""Sampling parameters: defaults, limits, refusals."""

from typing import Any

import pytest
from pydantic import ValidationError

from reference.bodies import sampling_of
from reference.config import ModelConfig
from reference.generation import Sampling
from weightsync.errors import InputError


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        pytest.param({}, Sampling(1.0, 128, frozenset(), 99), id="SGLang's defaults, a seed of the engine's"),
        pytest.param({"temperature": 0}, Sampling(0.0, 128, frozenset(), 99), id="temperature 0 is greedy"),
        pytest.param({"temperature": 1e-7}, Sampling(0.0, 128, frozenset(), 99), id="so is nearly 0"),
        pytest.param({"max_new_tokens": 253}, Sampling(1.0, 253, frozenset(), 99), id="up to the last position"),
        pytest.param(
            {"stop_token_ids": [3, 3, 4], "sampling_seed": -5, "top_p": 1.0, "top_k": -1, "n": 1, "ignore_eos": True},
            Sampling(1.0, 128, frozenset({3, 4}), -5),
            id="what is switched off is accepted",
        ),
        pytest.param({"max_new_tokens": None}, Sampling(1.0, 128, frozenset(), 99), id="null means the default"),
    ],
)
def test_parameters_are_read(config: ModelConfig, params: dict[str, Any], expected: Sampling) -> None:
    """For a prompt of three tokens of a model with 256 positions."""
    assert sampling_of(params, [1, 2, 3], config, 99) == expected


@pytest.mark.parametrize(
    ("params", "prompt", "sentence"),
    [
        pytest.param({"top_p": 0.9}, 3, "top_p=0.9 is not supported", id="nucleus sampling"),
        pytest.param({"n": 4}, 3, "n=4 is not supported", id="several answers"),
        pytest.param({"max_token": 4}, 3, "max_token=4 is not supported", id="a misspelt name"),
        pytest.param({"max_new_tokens": 254}, 3, "exceed the model's maximum context length", id="too many tokens"),
        pytest.param({}, 256, "is longer than the model's context length", id="too long a prompt"),
    ],
)
def test_what_cannot_be_done_is_refused(
    config: ModelConfig, params: dict[str, Any], prompt: int, sentence: str
) -> None:
    """Never silently ignored."""
    with pytest.raises(InputError, match=sentence):
        sampling_of(params, [1] * prompt, config, 0)


@pytest.mark.parametrize("params", [{"temperature": -1}, {"temperature": float("nan")}, {"max_new_tokens": -1}])
def test_values_out_of_range_are_refused(config: ModelConfig, params: dict[str, Any]) -> None:
    """Answered with 400 as well."""
    with pytest.raises(ValidationError):
        sampling_of(params, [1], config, 0)
