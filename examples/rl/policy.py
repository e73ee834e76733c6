"""The policy: its sizes and its first weights, the same wherever they are made. Pure."""

import torch
from torch import Tensor

from reference.checkpoint import initial_state
from reference.config import HEAD, ModelConfig
from reference.model import CheckpointModel

SEED = 0

# 3.2 MB in float32: with buckets of 64 KiB about 50 of them.
CONFIG = ModelConfig(
    vocab=32, hidden=128, layers=4, heads=4, kv_heads=2, head_dim=32, intermediate=384, max_positions=128
)

# A head this small lets the first policy try every token: one that starts with favourites gets stuck with them.
HEAD_SCALE = 0.1


def first_state(seed: int = SEED) -> dict[str, Tensor]:
    """The checkpoint that engines start with and that the trainer starts from."""
    state = initial_state(CONFIG, seed)
    state[HEAD] = state[HEAD] * HEAD_SCALE
    return state


def trainable(state: dict[str, Tensor]) -> CheckpointModel:
    """A model that holds a copy of ``state``."""
    model = CheckpointModel(CONFIG)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(state[name])
    return model
