"""Engines of several parallelisms, fed together: one publish fills the replicas of every layout."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from reference.alone import greedy_tokens
from reference.checkpoint import initial_state, make_checkpoint
from tests.build.small_model import CONFIG
from tools.world.world import World
from weightsync import Publisher
from weightsync.announcement import Announcement
from weightsync_agent.arenas.sizing import HEADROOM

pytestmark = [pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(120)]

ROOM = 64 << 20
PROMPT = [3, 1, 4]
PUBLISHES = 5  # until both are served, at most
ASK = {"input_ids": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}}


@pytest.fixture
def world() -> Iterator[World]:
    torch.set_num_threads(1)
    with World({"strategy": {"deadlineSeconds": 30}}) as world:
        yield world


def test_one_publish_feeds_engines_of_two_parallelisms(world: World, tmp_path: Path) -> None:
    """One rank beside two: both serve the version, with its tokens, and every rank's parameters are its bytes.

    No publish fails, though the first begins while the plan is on its way to the trainers.
    """
    make_checkpoint(tmp_path, CONFIG, seed=0)
    limit = str(HEADROOM + 2 * ROOM)
    trainers = [world.trainer(f"trainer-{rank}", WEIGHTSYNC_MEMORY_LIMIT=limit) for rank in range(2)]
    engines = [world.engine("one-rank", tmp_path), world.engine("two-ranks", tmp_path, "--tp-size", "2")]
    with ExitStack() as stack, ThreadPoolExecutor(len(trainers)) as threads:
        publishers = [
            stack.enter_context(Publisher(rank=rank, world_size=2, directory=pod.volume))
            for rank, pod in enumerate(trainers)
        ]
        plan = world.wait_for_engines(2)
        said = {
            name: Announcement.model_validate(world.call(pod, "/v1/announcement")) for name, pod in world.pods.items()
        }
        assert [said[pod.name].room_bytes for pod in trainers] == [ROOM, ROOM]
        one, two = (said[pod.name] for pod in engines)
        assert (one.engine_ranks, two.engine_ranks) == (1, 2)
        assert one.checkpoint == two.checkpoint != ""
        assert one.replica_bytes > two.replica_bytes > 0
        assert {r.layout for r in one.targets}.isdisjoint(r.layout for r in two.targets)
        feeding = {route.source for engine in plan.engines for target in engine.targets for route in target.routes}
        assert feeding == {pod.uid for pod in trainers}

        state = initial_state(CONFIG, seed=11)
        for _ in range(PUBLISHES):  # an engine that joined a moment ago, and not all trainers know, is in the next
            handles = list(threads.map(lambda publisher: publisher.publish(state), publishers))
            outcomes = [handle.raise_on_failure(timeout=40) for handle in handles]
            assert {engine.outcome for outcome in outcomes for engine in outcome.engines} <= {"Current"}
            if len(outcomes[0].engines) == len(engines):
                break
        for outcome in outcomes:
            assert [engine.outcome for engine in outcome.engines] == ["Current", "Current"]
        expected = greedy_tokens(state, CONFIG, PROMPT, 8)
        for pod in engines:
            assert world.ask_engine(pod, "/generate", ASK)["output_ids"] == expected
            assert world.call(pod, "/v1/readback", {}) == {"version": handles[0].version, "digestOk": True}
