"""Checkpoints on disk."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from reference.checkpoint import initial_state, make_checkpoint, read_checkpoint, write_checkpoint
from reference.config import EMBED, HEAD, ModelConfig, checkpoint_shapes
from weightsync.errors import InputError


def test_a_seed_gives_the_same_bytes(config: ModelConfig, tmp_path: Path) -> None:
    """Pods that make their own checkpoint from one seed start with equal weights, and do not disturb torch's seed."""
    torch.manual_seed(0)
    before = torch.rand(1)
    torch.manual_seed(0)
    make_checkpoint(tmp_path / "a", config, 7)
    assert torch.equal(torch.rand(1), before)
    make_checkpoint(tmp_path / "b", config, 7)
    a, b = (tmp_path / name / "model.safetensors" for name in "ab")
    assert a.read_bytes() == b.read_bytes()
    make_checkpoint(tmp_path / "c", config, 8)
    assert (tmp_path / "c" / "model.safetensors").read_bytes() != a.read_bytes()


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
def test_reading_gives_back_what_was_written(config: ModelConfig, tmp_path: Path, tied: bool) -> None:
    """Config and tensors, in checkpoint order."""
    config = dataclasses.replace(config, tied=tied)
    state = make_checkpoint(tmp_path, config, 1)
    found, read = read_checkpoint(tmp_path)
    assert found == config
    assert list(read) == list(checkpoint_shapes(config)) == list(state)
    assert all(torch.equal(read[name], state[name]) for name in state)


def test_the_dtype_is_written_down(config: ModelConfig, tmp_path: Path) -> None:
    """A bfloat16 checkpoint says so, where Hugging Face's readers look."""
    make_checkpoint(tmp_path, config, 1, torch.bfloat16)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert read_checkpoint(tmp_path)[1][EMBED].dtype == torch.bfloat16


def test_a_tied_head_that_was_written_twice_is_read_once(config: ModelConfig, tmp_path: Path) -> None:
    """Some trainers save the tied head as a tensor of its own."""
    config = dataclasses.replace(config, tied=True)
    state = initial_state(config, 0)
    write_checkpoint(tmp_path, config, state | {HEAD: state[EMBED].clone()})
    assert HEAD not in read_checkpoint(tmp_path)[1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        pytest.param("drop", "tensor model.norm.weight is missing", id="a tensor is missing"),
        pytest.param("shape", r"tensor model.norm.weight has shape \(3,\)", id="a tensor has another shape"),
        pytest.param("extra", "tensor other is none of this model's", id="a tensor too many"),
        pytest.param("garbage", "cannot be read", id="no safetensors file"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name(
    config: ModelConfig, tmp_path: Path, change: str, sentence: str
) -> None:
    """The message names the file and the tensor."""
    make_checkpoint(tmp_path, config, 1)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    match change:
        case "drop":
            del tensors["model.norm.weight"]
        case "shape":
            tensors["model.norm.weight"] = torch.ones(3)
        case "extra":
            tensors["other"] = torch.ones(1)
    save_file(tensors, path)
    if change == "garbage":
        path.write_bytes(b"no checkpoint")
    with pytest.raises(InputError, match=rf"model\.safetensors: {sentence}"):
        read_checkpoint(tmp_path)
