"""One engine whose two ranks live in two pods, each with an agent and a process of its own, in real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reference.alone import greedy_tokens
from reference.checkpoint import initial_state
from tests.build.small_model import CONFIG, PROMPT, TOKENS
from tools.world.processes import wait
from tools.world.world import World
from weightsync import Publisher, PublishHandle
from weightsync.plan import Plan

pytestmark = [pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(300)]


class Job:
    """A trainer, an engine of two pods beside one of one pod, and what each published version computes."""

    def __init__(self, world: World, checkpoint: Path) -> None:
        self.world = world
        self.trainer = world.trainer("trainer-0")
        self.leader, self.member = world.engine_of_pods("pair", checkpoint, 2, "--tp-size", "2")
        self.single = world.engine("single", checkpoint, "--tp-size", "2")
        self.publisher = Publisher(rank=0, world_size=1, directory=self.trainer.volume)
        self.expected: dict[str, list[int]] = {}
        self.plan = world.wait_for_engines(2)

    def publish(self, seed: int) -> PublishHandle:
        state = initial_state(CONFIG, seed=seed)
        handle = self.publisher.publish(state)
        version = handle.outcome(timeout=60).version
        assert version is not None, handle.outcome(timeout=1).describe()
        self.expected[version.name] = greedy_tokens(state, CONFIG, PROMPT, TOKENS)
        return handle

    def right(self) -> str:
        """Ask the engine: every token is that of the version that the answer names. Returns it."""
        body = {
            "input_ids": PROMPT,
            "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True},
        }
        said = self.world.ask_engine(self.leader, "/generate", body)
        ((version, count),) = said["meta_info"]["spans"]
        assert count == TOKENS
        assert said["output_ids"] == self.expected[version], f"it answers torn as {version}"
        return str(version)

    @staticmethod
    def outcomes(handle: PublishHandle) -> dict[str, str]:
        return {each.engine: each.outcome for each in handle.outcome(timeout=60).engines}

    def serves(self, handle: PublishHandle) -> str:
        """Until the engine serves what was published, whatever became of the publish."""
        version = handle.version
        assert version is not None
        self.world.wait_for_version(self.leader, version, seconds=60)
        assert self.right() == version
        return version


@pytest.fixture(scope="module")
def job(checkpoint: Path) -> Iterator[Job]:
    torch.set_num_threads(1)
    plan = {"strategy": {"deadlineSeconds": 20}}
    with World(plan, {"WEIGHTSYNC_STALL_SECONDS": "2"}, failpoints=True) as world:
        job = Job(world, checkpoint)
        yield job
        job.publisher.close()


def holders(plan: Plan) -> list[tuple[int, str]]:
    """Which pod holds which rank of the engine of two."""
    engine = next(engine for engine in plan.engines if engine.leader == "pair")
    return [(target.rank.rank, target.uid) for target in engine.targets]


def test_an_engine_of_two_pods_is_whole_and_serves_what_was_published(job: Job) -> None:
    """Each rank is written to in its own pod; the leader alone commits; what stands in both is the replica."""
    assert holders(job.plan) == [(0, "pair"), (1, "pair-1")]
    for seed in (11, 12):
        handle = job.publish(seed)
        assert job.outcomes(handle) == {"pair": "Current", "single": "Current"}
        assert job.right() == handle.version
        assert job.world.call(job.leader, "/v1/readback", {}) == {"version": handle.version, "digestOk": True}
    member = job.world.status(job.member)
    assert [(rank.rank, rank.state, rank.version) for rank in member.ranks] == [(1, "Sealed", handle.version)]
    wait("the member's gate to follow", lambda: job.world.status(job.member).gate, 10, [job.member.agent])


def test_a_members_agent_that_dies_in_the_middle_of_a_write_fails_that_sync_alone(job: Job) -> None:
    """The engine serves on as it was, whole, and gets the version once the agent is back."""
    before = job.publish(21)
    assert job.right() == before.version
    point = job.world.failpoints("pair-1") / "target-writing"
    point.write_text("hold")
    publishing = job.publisher.publish(initial_state(CONFIG, seed=22))
    wait("a writer to wait in the member", (point.parent / "target-writing.reached").exists, 30, [job.member.agent])
    job.member.agent.kill()
    point.with_suffix(".held").unlink()
    assert job.right() == before.version
    job.member.agent.start()
    outcomes = job.outcomes(publishing)
    assert outcomes["single"] == "Current"
    assert outcomes["pair"] != "Current"
    assert publishing.version is not None
    job.expected[publishing.version] = greedy_tokens(initial_state(CONFIG, seed=22), CONFIG, PROMPT, TOKENS)
    job.serves(publishing)


def test_an_engine_whose_members_process_restarts_gets_its_version_back(job: Job) -> None:
    """Both processes begin anew with the base checkpoint; no token of it is seen once a version was served."""
    handle = job.publish(31)
    version = handle.version
    assert job.right() == version
    for pod in (job.member, job.leader):
        assert pod.engine is not None
    job.member.engine.kill()  # type: ignore[union-attr]
    wait("the other process to end with it", lambda: not job.leader.engine.alive, 20)  # type: ignore[union-attr]
    wait("the gate to close", lambda: not job.world.status(job.leader).gate, 20, [job.leader.agent])
    for pod in (job.leader, job.member):
        pod.engine.start()  # type: ignore[union-attr]
    assert job.serves(handle) == version
