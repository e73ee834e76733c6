"""A source's agent that was killed, with real processes: what it had sealed heals engines without a publish."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reference.alone import greedy_tokens
from reference.checkpoint import initial_state
from tests.build.small_model import CONFIG, PROMPT, TOKENS
from tools.world.pod import Pod
from tools.world.processes import WorldError, wait
from tools.world.world import World
from weightsync import Publisher

pytestmark = [pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def world() -> Iterator[World]:
    torch.set_num_threads(1)
    with World({"strategy": {"deadlineSeconds": 20}}, {"WEIGHTSYNC_STALL_SECONDS": "2"}) as world:
        yield world


def listens(world: World, pod: Pod) -> bool:
    try:
        world.call(pod, "/v1/announcement")
    except WorldError:
        return False
    return True


def test_an_engine_joins_after_the_sources_agent_was_killed_and_nothing_is_published(
    world: World, checkpoint: Path
) -> None:
    """The sealed arena is opened again and compared, for whoever needs it; the joiner's tokens are the version's."""
    trainer = world.trainer("trainer-0")
    world.engine("engine-0", checkpoint)
    with Publisher(rank=0, world_size=1, directory=trainer.volume) as publisher:
        world.wait_for_engines(1)
        state = initial_state(CONFIG, seed=11)
        handle = publisher.publish(state)
        handle.raise_on_failure(timeout=40)
        version = handle.version
        assert version is not None
        trainer.agent.kill()
        trainer.agent.start()
        wait("the trainer's agent", lambda: listens(world, trainer), 30, [trainer.agent])
        joiner = world.engine("engine-1", checkpoint)
        world.wait_for_version(joiner, version, seconds=60)
        body = {
            "input_ids": PROMPT,
            "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True},
        }
        said = world.ask_engine(joiner, "/generate", body)
        assert said["output_ids"] == greedy_tokens(state, CONFIG, PROMPT, TOKENS)
        assert said["meta_info"]["spans"] == [[version, TOKENS]]
        assert "outlived the agent" in trainer.agent.log.read_text()
        world.wait_for_engines(2)  # it read the version from the other engine: the trainer may not know of it yet
        second = publisher.publish(initial_state(CONFIG, seed=12))
        outcome = second.outcome(timeout=60)
        assert {engine.engine: engine.outcome for engine in outcome.engines} == {
            "engine-0": "Current",
            "engine-1": "Current",
        }, outcome.describe()
