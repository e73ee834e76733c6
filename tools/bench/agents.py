"""Our side as users run it: a Publisher, its agent, an engine's agent and the engine, from a plan file.

publish() of a whole state dict until the target has verified every bucket. The commit that follows is not counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Self

import torch

from reference.checkpoint import initial_state, write_checkpoint
from reference.config import ModelConfig
from tools.world.pod import Pod
from tools.world.world import World
from weightsync import Publisher
from weightsync_agent.transfer.probe import probe

OUTCOME_SECONDS = 120.0


class NotServed(Exception):
    """The engine did not become current; the message is the outcome's."""


def config(nbytes: int) -> ModelConfig:
    """A model of about ``nbytes``: as many wide layers as fit, so that its parameters are few and large."""
    hidden, intermediate = 2048, 8192
    layer = 4 * (4 * hidden * hidden + 3 * hidden * intermediate)
    if nbytes < layer:
        hidden, intermediate = 256, 1024
        layer = 4 * (4 * hidden * hidden + 3 * hidden * intermediate)
    heads = hidden // 128
    return ModelConfig(
        vocab=64, hidden=hidden, layers=max(1, round(nbytes / layer)), heads=heads, kv_heads=heads, head_dim=128,
        intermediate=intermediate,
    )  # fmt: skip


class Agents:
    """A world of one trainer and one engine; publish() is one version from the trainer's tensors to verified."""

    def __init__(self, world: World, publisher: Publisher, engine: Pod, state: Mapping[str, torch.Tensor]) -> None:
        self._world = world
        self._publisher = publisher
        self._engine = engine
        self._state = state
        self.nbytes = sum(tensor.numel() * tensor.element_size() for tensor in state.values())

    @classmethod
    async def start(cls, world: World, nbytes: int) -> Self:
        """Both pods up, the plan known, the first version (which learns the names) published."""
        return await asyncio.to_thread(cls._start, world, nbytes)

    @classmethod
    def _start(cls, world: World, nbytes: int) -> Self:
        shape = config(nbytes)
        state = initial_state(shape, seed=0)
        model = world.folder / "model"
        write_checkpoint(model, shape, state)
        trainer, engine = world.trainer("trainer"), world.engine("engine", model)
        publisher = Publisher(rank=0, world_size=1, directory=trainer.volume)
        world.wait_for_engines(1, seconds=300)
        ours = cls(world, publisher, engine, state)
        ours._publish()
        world.keep_plan()
        return ours

    async def publish(self) -> float:
        """Seconds. Raises NotServed."""
        return await asyncio.to_thread(self._publish)

    def _publish(self) -> float:
        began = time.perf_counter()
        outcome = self._publisher.publish(self._state).outcome(OUTCOME_SECONDS)
        ended = time.perf_counter()
        if outcome.status != "Current":
            raise NotServed(outcome.describe())
        (engine,) = outcome.engines
        # What came after the last bucket was verified: the decision, the commit, and their way back to us.
        return ended - began - (outcome.seconds - engine.staged_seconds)

    async def regions(self) -> int:
        """Regions that the target's worker has registered."""
        sessions = [line for line in self._engine.agent.log.read_text().splitlines() if '"session"' in line]
        session = sessions[-1].partition('"session": "')[2].partition('"')[0]
        return len((await probe(session, 10)).regions)

    @property
    def parameters(self) -> int:
        """Parameters of the engine rank."""
        return len(self._state)

    async def close(self) -> None:
        """Let go of the Publisher; the world ends with its owner."""
        await asyncio.to_thread(self._publisher.close)
