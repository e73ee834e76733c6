"""Direct mode with real processes and real Mooncake: weights land in the paused engine's own parameters."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reference.alone import greedy_tokens
from reference.checkpoint import initial_state, make_checkpoint
from reference.config import ModelConfig
from tools.world.pod import Pod
from tools.world.processes import WorldError, wait
from tools.world.world import World
from weightsync import Publisher, PublishHandle
from weightsync_agent.engines.seed import SEED_FLAG

pytestmark = [pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(240)]

CONFIG = ModelConfig(vocab=64, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=128)
PROMPT = [3, 1, 4, 1, 5]
TOKENS = 12


class Job:
    """A trainer with a Publisher, one engine that is written to itself, and what each version computes."""

    def __init__(self, world: World, checkpoint: Path) -> None:
        self.world = world
        self.trainer = world.trainer("trainer-0")
        self.pod = world.engine("engine-0", checkpoint, SEED_FLAG, WEIGHTSYNC_MODE="Direct")
        self.publisher = Publisher(rank=0, world_size=1, directory=self.trainer.volume)
        self.expected: dict[str, list[int]] = {}
        world.wait_for_engines(1)

    def publish(self, seed: int) -> PublishHandle:
        state = initial_state(CONFIG, seed=seed)
        handle = self.publisher.publish(state)
        outcome = handle.outcome(timeout=60)
        assert handle.version is not None, outcome.describe()
        self.expected[handle.version] = greedy_tokens(state, CONFIG, PROMPT, TOKENS)
        return handle

    def answer(self) -> str:
        """Ask; every token must be that of the version that the answer names. Returns the version."""
        body = {
            "input_ids": PROMPT,
            "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True},
        }
        said = self.world.ask_engine(self.pod, "/generate", body)
        ((version, count),) = said["meta_info"]["spans"]
        assert count == TOKENS
        assert said["output_ids"] == self.expected[version], f"{self.pod.name} answers torn as {version}"
        return str(version)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    make_checkpoint(folder, CONFIG, seed=0)
    return folder


@pytest.fixture
def job(checkpoint: Path) -> Iterator[Job]:
    torch.set_num_threads(1)
    plan = {"strategy": {"deadlineSeconds": 20}}
    with World(plan, {"WEIGHTSYNC_STALL_SECONDS": "2"}, failpoints=True) as world:
        job = Job(world, checkpoint)
        yield job
        job.publisher.close()


def test_what_is_published_is_written_into_the_engine_itself(job: Job) -> None:
    """Two versions; tokens are theirs, read back they stand in the parameters, and no replica lies in the volume."""
    for seed in (1, 2):
        handle = job.publish(seed)
        (engine,) = handle.raise_on_failure(timeout=1).engines
        assert (engine.outcome, engine.mode) == ("Current", "Direct")
        assert job.answer() == handle.version
        assert job.world.call(job.pod, "/v1/readback", {}) == {"version": handle.version, "digestOk": True}
    assert job.world.status(job.pod).mode == "Direct"
    assert not list((job.pod.volume / "arenas").iterdir())
