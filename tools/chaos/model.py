"""The model of the trials: small, but with several buckets for each stage. Pure."""

from torch import Tensor

from reference.checkpoint import initial_state
from reference.config import ModelConfig, stage_names

# 7.6 MB in float32: 16 buckets, 8 for each of two stages.
CONFIG = ModelConfig(vocab=64, hidden=192, layers=4, heads=6, kv_heads=2, head_dim=32, intermediate=640)
NBYTES = 4 * sum(tensor.numel() for tensor in initial_state(CONFIG, 0).values())
RANKS = 2


def weights(seed: int) -> dict[str, Tensor]:
    """The checkpoint that publish number ``seed`` gives; 0: what engines start with."""
    return initial_state(CONFIG, seed)


def stage(seed: int, rank: int) -> dict[str, Tensor]:
    """What one rank yields of it."""
    state = weights(seed)
    return {name: state[name] for name in stage_names(CONFIG, rank, RANKS)}
