"""Engines pass a version on to engines, between real processes: what the trainer writes, and what a death costs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reference.alone import greedy_tokens
from reference.checkpoint import initial_state
from tests.build.small_model import CONFIG, PROMPT, TOKENS
from tools.chaos.holds import Hold
from tools.world.pod import Pod
from tools.world.world import World
from weightsync import Publisher

pytestmark = [pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(240)]

PLAN = {
    "strategy": {"deadlineSeconds": 30},
    "transfer": {"bucketSize": "16Ki", "relay": {"fanout": 2}},
}


def tokens(world: World, pod: Pod) -> object:
    body = {"input_ids": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}}
    return world.ask_engine(pod, "/generate", body)["output_ids"]


def parents(world: World, trainer: Pod) -> dict[str, str]:
    """By engine, the one that feeds it in the last sync, as its coordinator said; without those of the trainer."""
    lines = [json.loads(line) for line in trainer.agent.log.read_text().splitlines() if line.startswith("{")]
    tree = [line["tree"] for line in lines if line.get("event") == "relay"][-1]
    names = {key: world.name_of(key.partition("/")[0]) for key in tree}
    return {names[key]: names[parent] for key, parent in tree.items() if parent is not None}


@pytest.fixture
def world() -> Iterator[World]:
    torch.set_num_threads(1)
    with World(PLAN, {"WEIGHTSYNC_STALL_SECONDS": "2"}, failpoints=True) as world:
        yield world


def test_four_engines_two_of_which_are_written_to(world: World, checkpoint: Path) -> None:
    """The trainer writes twice the version, every engine serves it; then a parent dies in the middle of the next.

    Its child reads the rest from another engine, and is current with the others.
    """
    trainer = world.trainer("trainer-0")
    engines = {f"engine-{i}": world.engine(f"engine-{i}", checkpoint) for i in range(4)}
    with Publisher(rank=0, world_size=1, directory=trainer.volume) as publisher:
        world.wait_for_engines(4)
        state = initial_state(CONFIG, seed=11)
        handle = publisher.publish(state)
        handle.raise_on_failure(timeout=40)
        lineage = (handle.version or "").partition(".")[0]
        fed = parents(world, trainer)
        assert len(fed) == 2
        nbytes = {world.metric(engines[name], "weightsync_agent_relayed_bytes_total") for name in fed}
        written = world.metric(trainer, "weightsync_agent_written_bytes_total")
        assert {2 * each for each in nbytes} == {written}
        routes = {each.engine: {route.engine for route in each.routes} for each in handle.outcome(timeout=1).engines}
        assert routes == {name: {fed.get(name, "")} for name in engines}
        expected = greedy_tokens(state, CONFIG, PROMPT, TOKENS)
        assert all(tokens(world, pod) == expected for pod in engines.values())

        child, parent = sorted(fed.items())[0]
        hold = Hold(world.failpoints(child), "target-relaying")
        later = initial_state(CONFIG, seed=12)
        publisher.publish(later)
        hold.wait(20)
        assert parents(world, trainer) == fed
        engines[parent].agent.kill()
        hold.release()
        # Its outcome lasts as long as the dead one's commit is tried: the others do not wait for that.
        version = f"{lineage}.2"
        others = [pod for name, pod in engines.items() if name != parent]
        for pod in others:
            world.wait_for_version(pod, version)
        expected = greedy_tokens(later, CONFIG, PROMPT, TOKENS)
        assert all(tokens(world, pod) == expected for pod in others)
        assert all(world.call(pod, "/v1/readback", {}) == {"version": version, "digestOk": True} for pod in others)
