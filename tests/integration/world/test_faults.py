"""What the main job does when its parts die: right or paused, never silently wrong; the others unaffected."""

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from reference.alone import greedy_tokens
from reference.checkpoint import initial_state
from tests.build.small_model import CONFIG, PROMPT, TOKENS
from tools.world.pod import Pod
from tools.world.processes import WorldError, wait
from tools.world.world import World
from weightsync import Publisher, PublishHandle

pytestmark = [pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(300)]


class Job:
    """A trainer with a Publisher, two engines, and what each published version computes."""

    def __init__(self, world: World, checkpoint: Path) -> None:
        self.world = world
        self.trainer = world.trainer("trainer-0")
        self.engines = [world.engine(f"engine-{i}", checkpoint) for i in range(2)]
        self.publisher = Publisher(rank=0, world_size=1, directory=self.trainer.volume)
        self.expected: dict[str, list[int]] = {}
        world.wait_for_engines(2)

    def mend(self) -> None:
        """Whatever a test did, and however it ended: everything runs, and every engine serves what was published."""
        for pod in self.world.pods.values():
            for child in pod.children:
                child.kill(signal.SIGCONT)
                if not child.alive:
                    child.start()
        for pod in self.engines:
            wait(f"{pod.name} to serve", partial(_serves, self.world, pod), 60, pod.children)
        self.world.wait_for_fresh_plan(2)

    def publish(self, seed: int) -> PublishHandle:
        state = initial_state(CONFIG, seed=seed)
        handle = self.publisher.publish(state)
        outcome = handle.outcome(timeout=60)
        version = outcome.version
        assert version is not None, outcome.describe()
        self.expected[version.name] = greedy_tokens(state, CONFIG, PROMPT, TOKENS)
        return handle

    def version(self, handle: PublishHandle) -> str:
        assert handle.version is not None
        return handle.version

    def outcomes(self, handle: PublishHandle) -> dict[str, str]:
        return {engine.engine: engine.outcome for engine in handle.outcome(timeout=1).engines}

    def right(self, pod: Pod) -> str:
        """Ask; every token must be that of the version that the answer names. Returns the version."""
        body = {
            "input_ids": PROMPT,
            "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True},
        }
        said = self.world.ask_engine(pod, "/generate", body)
        ((version, count),) = said["meta_info"]["spans"]
        assert count == TOKENS
        assert said["output_ids"] == self.expected[version], f"{pod.name} answers torn as {version}"
        return str(version)


@pytest.fixture(scope="module")
def everything(checkpoint: Path) -> Iterator[Job]:
    """One world for all: each test strikes another part, and what it struck heals."""
    torch.set_num_threads(1)
    plan = {"strategy": {"deadlineSeconds": 20}}
    with World(plan, {"WEIGHTSYNC_STALL_SECONDS": "2"}) as world:
        job = Job(world, checkpoint)
        yield job
        job.publisher.close()


@pytest.fixture
def job(everything: Job) -> Job:
    """A job in which nothing is wrong."""
    everything.mend()
    return everything


def test_a_killed_agent_comes_back_to_a_current_engine(job: Job) -> None:
    """While the agent is dead the engine serves on; its journal brings the agent back with no byte on the wire."""
    version = job.version(job.publish(1))
    pod = job.engines[0]
    pod.agent.kill()
    assert job.right(pod) == version
    pod.agent.start()
    job.world.wait_for_version(pod, version)
    assert job.world.status(pod).ranks[0].state == "Sealed"
    assert job.right(pod) == version
    job.world.wait_for_fresh_plan(2)
    second = job.publish(2)
    assert job.outcomes(second) == {"engine-0": "Current", "engine-1": "Current"}
    assert job.right(pod) == job.version(second)


def test_a_restarted_engine_gets_its_version_back_from_its_own_arena(job: Job) -> None:
    """A new life never answers from its base checkpoint once a version was served; the trainer is not asked."""
    version = job.version(job.publish(1))
    pod, engine = job.engines[0], job.engines[0].engine
    assert engine is not None
    engine.kill()
    wait("the gate to close", lambda: not job.world.status(pod).gate, 20, [pod.agent])
    job.trainer.agent.kill(signal.SIGSTOP)
    engine.start()
    job.world.wait_for_version(pod, version, seconds=60)
    assert job.right(pod) == version
    job.trainer.agent.kill(signal.SIGCONT)


def test_a_dead_engine_does_not_hold_the_others(job: Job) -> None:
    """Its outcome says so, the other becomes current; back again, it is repaired without a publish."""
    job.publish(1)
    dead, alive = job.engines
    for child in dead.children:
        child.kill()
    handle = job.publish(2)
    assert job.outcomes(handle) == {"engine-0": "Failed", "engine-1": "Current"}
    assert job.right(alive) == job.version(handle)
    for child in dead.children:
        child.start()
    job.world.wait_for_version(dead, job.version(handle), seconds=60)
    assert job.right(dead) == job.version(handle)


def test_a_stopped_target_agent_costs_one_stall_and_is_fenced(job: Job) -> None:
    """Stopped for a whole sync: the other engine commits; resumed, it is repaired, and late bytes reach nothing."""
    first = job.version(job.publish(1))
    stopped, alive = job.engines
    stopped.agent.kill(signal.SIGSTOP)
    handle = job.publish(2)
    assert job.outcomes(handle) == {"engine-0": "Failed", "engine-1": "Current"}
    assert job.right(alive) == job.version(handle)
    assert job.right(stopped) == first
    stopped.agent.kill(signal.SIGCONT)
    job.world.wait_for_version(stopped, job.version(handle), seconds=60)
    assert job.right(stopped) == job.version(handle)


def test_a_restarted_source_agent_goes_on_with_the_next_publish(job: Job) -> None:
    """The Publisher connects again by itself; numbers go on rising."""
    first = job.version(job.publish(1))
    job.trainer.agent.kill()
    job.trainer.agent.start()
    wait("the trainer's agent", lambda: _listens(job.world, job.trainer), 30, [job.trainer.agent])
    handle = job.publisher.publish(initial_state(CONFIG, seed=9))  # tells the agent who it is
    handle.outcome(timeout=60)
    job.world.wait_for_fresh_plan(2)
    last = job.publish(2)
    assert job.outcomes(last) == {"engine-0": "Current", "engine-1": "Current"}
    assert int(job.version(last).rpartition(".")[2]) > int(first.rpartition(".")[2])


def test_a_wrong_tensor_ends_the_version_and_not_the_job(job: Job) -> None:
    """The outcome names the tensor; engines keep what they serve; the next publish is served."""
    first = job.version(job.publish(1))
    state = initial_state(CONFIG, seed=2)
    state["model.norm.weight"] = torch.zeros(3)
    outcome = job.publisher.publish(state).outcome(timeout=40)
    assert outcome.status == "Failed"
    assert "model.norm.weight" in outcome.message
    assert [job.right(pod) for pod in job.engines] == [first, first]
    assert job.outcomes(job.publish(3)) == {"engine-0": "Current", "engine-1": "Current"}


def _serves(world: World, pod: Pod) -> bool:
    try:
        return world.status(pod).gate
    except WorldError:
        return False


def _listens(world: World, pod: Pod) -> bool:
    try:
        world.call(pod, "/v1/announcement")
    except WorldError:
        return False
    return True
