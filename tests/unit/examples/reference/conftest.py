"""A small model, one torch thread, and requests whose end can be seen."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from reference.checkpoint import initial_state
from reference.config import ModelConfig
from reference.engine_model import EngineModel, build_engine_model
from reference.generation import Generation, Sampling

Ask = Callable[..., Generation]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def config() -> ModelConfig:
    """Two layers; query heads share KV heads."""
    return ModelConfig(
        vocab=48, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate=64, max_positions=256
    )


@pytest.fixture
def states(config: ModelConfig) -> list[dict[str, Tensor]]:
    """Two versions of the weights."""
    return [initial_state(config, seed) for seed in (0, 1)]


@pytest.fixture
def model(config: ModelConfig, states: list[dict[str, Tensor]]) -> EngineModel:
    """An engine model that holds the first version."""
    return build_engine_model(config, states[0])


@pytest.fixture
def ask() -> Ask:
    """Makes requests; each appends itself to ``ask.done`` when it ends."""

    def make(
        prompt: Sequence[int],
        tokens: int = 8,
        *,
        temperature: float = 0.0,
        stop: Sequence[int] = (),
        seed: int = 0,
        name: str = "",
    ) -> Generation:
        sampling = Sampling(temperature, tokens, frozenset(stop), seed)
        return Generation(name or f"r{len(prompt)}", list(prompt), sampling, done.append)

    done: list[Generation] = []
    make.done = done  # type: ignore[attr-defined]
    return make
