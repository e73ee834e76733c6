"""An engine that joins reads the version from another, between real processes, with the trainer there or gone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reference.alone import greedy_tokens
from reference.checkpoint import initial_state
from tests.build.small_model import CONFIG, PROMPT, TOKENS
from tools.chaos.holds import Hold
from tools.world.pod import Pod
from tools.world.processes import wait
from tools.world.world import World
from weightsync import Publisher

pytestmark = [pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def world() -> Iterator[World]:
    torch.set_num_threads(1)
    plan = {"strategy": {"deadlineSeconds": 20}, "transfer": {"bucketSize": "16Ki"}}
    with World(plan, {"WEIGHTSYNC_STALL_SECONDS": "2"}, failpoints=True) as world:
        yield world


def tokens(world: World, pod: Pod) -> list[int]:
    body = {"input_ids": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}}
    return world.ask_engine(pod, "/generate", body)["output_ids"]


def test_engines_join_from_engines_with_the_trainer_idle_and_gone(world: World, checkpoint: Path) -> None:
    """The trainer writes to the first engine only. The next two read from it; another, once the trainer is away, from
    one of these: the first has no place, and they are in the middle of it.
    """
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
        names = ("engine-1", "engine-2")
        holds = [Hold(world.failpoints(name), "target-pulling") for name in names]
        readers = [world.engine(name, checkpoint) for name in names]
        for hold in holds:
            hold.wait(60)
        assert world.metric(first, "weightsync_agent_readers") == 2
        assert world.metric(trainer, "weightsync_agent_written_bytes_total") == written
    world.wait_for_plan(lambda plan: len(plan.engines) == 3, "a plan with three engines")
    world.remove("trainer-0")
    last = world.engine("engine-3", checkpoint)

    def lent() -> bool:
        return sum(world.metric(reader, "weightsync_agent_readers") for reader in readers) == 1

    wait("the last one to read from one that reads", lent, 60, [last.agent])
    for hold in holds:
        hold.release()
    expected = greedy_tokens(state, CONFIG, PROMPT, TOKENS)
    for pod in (*readers, last):
        world.wait_for_version(pod, version, seconds=60)
        assert world.metric(pod, "weightsync_agent_pulled_bytes_total") == written > 0
    for pod in (first, *readers, last):
        assert tokens(world, pod) == expected
        assert world.call(pod, "/v1/readback", {}) == {"version": version, "digestOk": True}
