"""The model of tests between real processes: small enough to be served on a processor, large enough to be sharded."""

from pathlib import Path

import pytest

from reference.checkpoint import make_checkpoint
from reference.config import ModelConfig

CONFIG = ModelConfig(vocab=64, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=128)
PROMPT = [3, 1, 4, 1, 5]
TOKENS = 12


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What engines start with: no version that any test publishes."""
    folder = tmp_path_factory.mktemp("base")
    make_checkpoint(folder, CONFIG, seed=0)
    return folder
