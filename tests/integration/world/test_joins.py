"""An engine that joins reads the version from another, between real processes, with the trainer there or gone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reference.alone import greedy_tokens
from reference.checkpoint import initial_state
from tests.build.small_model import CONFIG, PROMPT, TOKENS
from tools.world.pod import Pod
from tools.world.world import World
from weightsync import Publisher

pytestmark = [pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def world() -> Iterator[World]:
    torch.set_num_threads(1)
    with World({"strategy": {"deadlineSeconds": 20}}, {"WEIGHTSYNC_STALL_SECONDS": "2"}) as world:
        yield world


def tokens(world: World, pod: Pod) -> list[int]:
    body = {"input_ids": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}}
    return world.ask_engine(pod, "/generate", body)["output_ids"]


def test_engines_join_from_engines_with_the_trainer_idle_and_gone(world: World, checkpoint: Path) -> None:
    """The trainer writes to the first engine only; the second joins while it idles, the third once it is away."""
    trainer = world.trainer("trainer-0")
    first = world.engine("engine-0", checkpoint)
    state = initial_state(CONFIG, seed=11)
    with Publisher(rank=0, world_size=1, directory=trainer.volume) as publisher:
        world.wait_for_engines(1)
        handle = publisher.publish(state)
        handle.raise_on_failure(timeout=40)
        version = handle.version
        assert version is not None
        written = world.metric(trainer, "weightsync_agent_written_bytes_total")
        second = world.engine("engine-1", checkpoint)
        world.wait_for_version(second, version, seconds=60)
        assert world.metric(trainer, "weightsync_agent_written_bytes_total") == written
        pulled = world.metric(second, "weightsync_agent_pulled_bytes_total")
        assert pulled == written > 0
    world.wait_for_plan(lambda plan: len(plan.engines) == 2, "a plan with both engines")
    world.remove("trainer-0")
    third = world.engine("engine-2", checkpoint)
    world.wait_for_version(third, version, seconds=60)
    assert world.metric(third, "weightsync_agent_pulled_bytes_total") == pulled
    expected = greedy_tokens(state, CONFIG, PROMPT, TOKENS)
    for pod in (first, second, third):
        assert tokens(world, pod) == expected
        assert world.call(pod, "/v1/readback", {}) == {"version": version, "digestOk": True}
