"""The whole path without Kubernetes: a trainer publishes, every engine serves it, a new engine joins."""

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
    with World({"strategy": {"deadlineSeconds": 30}}) as world:
        yield world


def answer(world: World, pod: Pod) -> tuple[list[int], list[list[object]]]:
    body = {"input_ids": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}}
    said = world.ask_engine(pod, "/generate", body)
    return said["output_ids"], said["meta_info"]["spans"]


def test_every_engine_serves_what_was_published_and_a_new_one_joins(world: World, checkpoint: Path) -> None:
    """Two engines become current; tokens are those of the published weights; a third joins with no publish."""
    trainer = world.trainer("trainer-0")
    engines = [world.engine(f"engine-{i}", checkpoint) for i in range(2)]
    with Publisher(rank=0, world_size=1, directory=trainer.volume) as publisher:
        world.wait_for_engines(2)
        for number, seed in ((1, 11), (2, 12)):
            state = initial_state(CONFIG, seed=seed)
            handle = publisher.publish(state, label=f"step {number}")
            outcome = handle.raise_on_failure(timeout=40)
            assert [engine.outcome for engine in outcome.engines] == ["Current", "Current"]
            assert sum(outcome.transports.values()) == 2
            routes = [route for engine in outcome.engines for route in engine.routes]
            assert all("no RDMA device" in route.why for route in routes if route.transport == "tcp")
            version = handle.version
            assert version is not None
            assert version.endswith(f".{number}")
            expected = greedy_tokens(state, CONFIG, PROMPT, TOKENS)
            for pod in engines:
                assert answer(world, pod) == (expected, [[version, TOKENS]])
                assert world.call(pod, "/v1/readback", {}) == {"version": version, "digestOk": True}
        assert version is not None
        joiner = world.engine("engine-2", checkpoint)
        world.wait_for_version(joiner, version, seconds=40)
        assert answer(world, joiner) == (expected, [[version, TOKENS]])
