"""Direct mode with real processes and real Mooncake: weights land in the paused engine's own parameters."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reference.alone import greedy_tokens
from reference.checkpoint import initial_state
from tests.build.small_model import CONFIG, PROMPT, TOKENS
from tools.world.processes import WorldError, wait
from tools.world.world import World
from weightsync import Publisher, PublishHandle
from weightsync_agent.engines.seed import SEED_FLAG

pytestmark = [pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(240)]


class Job:
    """A trainer with a Publisher, one engine that is written to itself, and what each version computes."""

    def __init__(self, world: World, checkpoint: Path) -> None:
        self.world = world
        self.trainer = world.trainer("trainer-0")
        # No arena fits beside the agent: the mode is chosen by that.
        self.pod = world.engine("engine-0", checkpoint, SEED_FLAG, WEIGHTSYNC_MEMORY_LIMIT="64Mi")
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

    def half_written(self, seed: int) -> PublishHandle:
        """Publish; when this returns some of its bytes are in the engine, and their source goes no further."""
        folder = self.world.failpoints("trainer-0")
        (folder / "source-writing.reached").unlink(missing_ok=True)
        (folder / "source-writing").touch()
        handle = self.publisher.publish(initial_state(CONFIG, seed=seed))
        wait("a source that writes", (folder / "source-writing.reached").exists, 30, self.trainer.children)
        return handle

    def release(self) -> None:
        """The source goes on."""
        (self.world.failpoints("trainer-0") / "source-writing.held").unlink(missing_ok=True)

    def stands_still(self) -> None:
        """It is torn, says so, and answers nobody."""
        assert self.world.status(self.pod).journal == "Torn"
        assert str(self.world.ask_engine(self.pod, "/model_info")["weight_version"]).startswith("torn:")
        with pytest.raises(WorldError):
            self.world.ask_engine(self.pod, "/generate", {"input_ids": PROMPT}, seconds=1.0)

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
def everything(checkpoint: Path) -> Iterator[Job]:
    torch.set_num_threads(1)
    plan = {"strategy": {"deadlineSeconds": 20}}
    with World(plan, {"WEIGHTSYNC_STALL_SECONDS": "2"}, failpoints=True) as world:
        job = Job(world, checkpoint)
        yield job
        job.publisher.close()


@pytest.fixture
def job(everything: Job) -> Job:
    """A job whose engine is in the plan, whatever befell it before."""
    everything.world.wait_for_fresh_plan(1)
    return everything


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


def test_an_engine_that_restarts_while_it_is_written_to_heals(job: Job) -> None:
    """The old process's table is void: nothing is written behind it, and the new process is given a whole version."""
    first, engine = job.publish(1).version, job.pod.engine
    assert first is not None
    assert engine is not None
    job.half_written(2)
    engine.kill()
    engine.start()
    job.release()
    job.world.wait_for_version(job.pod, first, seconds=60)
    assert job.answer() == first
    job.world.wait_for_fresh_plan(1)
    last = job.publish(3)
    assert [each.outcome for each in last.outcome(timeout=1).engines] == ["Current"]
    assert job.answer() == last.version


def test_an_agent_that_is_killed_while_its_engine_is_written_to_lets_nobody_in_before_the_writer_has_ended(
    job: Job,
) -> None:
    """Its journal names the writer, whose agent is asked; then the engine is given a whole version."""
    first = job.publish(1).version
    assert first is not None
    job.half_written(2)
    job.pod.agent.kill()
    job.pod.agent.start()
    job.release()
    wait("the engine to be looked at", lambda: _status(job) in {"Torn", "Current"}, 30, [job.pod.agent])
    job.world.wait_for_version(job.pod, first, seconds=60)
    assert job.answer() == first


def test_a_source_that_is_killed_while_it_writes_leaves_the_engine_paused_until_it_heals(job: Job) -> None:
    """Its bytes are in the engine, which stands still; nobody is let in before that is over. Nothing is published."""
    first = job.publish(1).version
    assert first is not None
    job.half_written(2)
    job.trainer.agent.kill()
    job.stands_still()
    job.trainer.agent.start()
    job.world.wait_for_version(job.pod, first, seconds=60)
    assert job.answer() == first
    assert "writers may still write into the engine" in job.pod.agent.log.read_text()


def _status(job: Job) -> str:
    try:
        return job.world.status(job.pod).journal
    except WorldError:
        return ""
