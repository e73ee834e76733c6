"""Checkpoints as files: config.json and model.safetensors, as Hugging Face lays them out; and a first state."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from reference.alone import answer_alone, greedy_tokens
from reference.config import EMBED, HEAD, ModelConfig, checkpoint_shapes, stage_names
from weightsync.errors import InputError

__all__ = [
    "answer_alone",
    "greedy_tokens",
    "initial_state",
    "make_checkpoint",
    "read_checkpoint",
    "stage_names",
    "write_checkpoint",
]

WEIGHTS = "model.safetensors"


def initial_state(config: ModelConfig, seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random tensors under checkpoint names: norms 1, the rest normal with 1 / sqrt(inputs), from ``seed`` alone."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in checkpoint_shapes(config).items():
        if len(shape) == 1:
            tensor = torch.ones(shape)
        else:
            deep = name.endswith(("o_proj.weight", "down_proj.weight"))
            scale = shape[1] ** -0.5 * ((2 * config.layers) ** -0.5 if deep else 1.0)
            tensor = torch.randn(shape, generator=generator) * scale
        state[name] = tensor.to(dtype)
    return state


def write_checkpoint(directory: Path, config: ModelConfig, state: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors into ``directory``, made if needed."""
    directory.mkdir(parents=True, exist_ok=True)
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in state.values()}
    document = config.to_json() | {"torch_dtype": min(dtypes)}
    (directory / "config.json").write_text(json.dumps(document, indent=2) + "\n")
    tensors = {name: tensor.detach().contiguous() for name, tensor in state.items()}
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def make_checkpoint(
    directory: Path, config: ModelConfig, seed: int, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Write a random checkpoint and return its state. The same config and seed give the same bytes."""
    state = initial_state(config, seed, dtype)
    write_checkpoint(directory, config, state)
    return state


def read_checkpoint(directory: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Config and state, in checkpoint order. Raises InputError that names the file and what is wrong with it."""
    config, path = ModelConfig.load(directory), directory / WEIGHTS
    try:
        found = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    state = {}
    for name, shape in checkpoint_shapes(config).items():
        if name not in found:
            raise InputError(f"{path}: tensor {name} is missing")
        if tuple(found[name].shape) != shape:
            raise InputError(f"{path}: tensor {name} has shape {tuple(found[name].shape)}, config.json means {shape}")
        state[name] = found.pop(name)
    if config.tied and HEAD in found and torch.equal(found[HEAD], state[EMBED]):
        del found[HEAD]  # some trainers write a tied head twice
    if found:
        raise InputError(f"{path}: tensor {min(found)} is none of this model's")
    return config, state
