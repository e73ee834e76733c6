"""Controls that must fail do fail: what an engine gets wrong in an apply is seen in its answers.

Real agents, a real engine process, a real publish; the fault sits where no digest looks any more.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from reference.checkpoint import initial_state, write_checkpoint
from rl.checker import Answer, Tally, check
from rl.engines import Engines
from rl.policy import CONFIG, first_state
from rl.sampling import probe_question
from rl.task import Task
from rl.versions import Versions
from tools.world.pod import Pod
from tools.world.processes import Child
from tools.world.world import World
from weightsync import Publisher, names

pytestmark = [pytest.mark.mooncake, pytest.mark.slow, pytest.mark.timeout(300)]

FAULTS = Path(__file__).parent / "faults"
PROBES, TOKENS = 6, 12


class Bench:
    """One engine behind the double, a Publisher, and the trainer's own copies."""

    def __init__(self, world: World, engine: Pod, publisher: Publisher) -> None:
        self._world, self._engine, self._publisher = world, engine, publisher
        self._versions = Versions(CONFIG, first_state())
        self._engines = Engines("127.0.0.1", engine.engine_port, dict)

    def publish(self, fault: str) -> Tally:
        """Publish another version while the double has this fault; the judgement of the answers that follow."""
        (self._engine.volume / "fault").write_text(fault)
        number = self._versions.newest + 1
        state = initial_state(CONFIG, seed=1000 + number)
        self._versions.add(state)
        handle = self._publisher.publish(state, label=fault)
        # The fault is one that agents cannot see: for them the engine is current.
        outcome = handle.raise_on_failure(timeout=90)
        assert [engine.outcome for engine in outcome.engines] == ["Current"]
        assert handle.version is not None
        self._versions.name(number, handle.version)
        return self._judge(Task(vocab=CONFIG.vocab).prompts(number, PROBES, "probe"))

    def _judge(self, prompts: Sequence[Sequence[int]]) -> Tally:
        tally = Tally()
        asked: list[Future[list[Answer]]] = [self._engines.ask(probe_question(prompt, TOKENS)) for prompt in prompts]
        for future in asked:
            (answer,) = future.result(60)
            tally.count(answer, check(answer, self._versions))
        return tally

    def close(self) -> None:
        self._engines.close()


def _behind_the_double(engine: Pod) -> None:
    """Start the engine anew, the double before the real hook."""
    child = engine.engine
    assert isinstance(child, Child)
    child.kill()
    child.environment["PYTHONPATH"] = os.pathsep.join([str(FAULTS), str(engine.volume / names.PYTHON)])
    child.start()


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with World({"strategy": {"deadlineSeconds": 60}, "transfer": {"bucketSize": "64Ki"}}) as world:
        write_checkpoint(world.folder / "model", CONFIG, first_state())
        trainer = world.trainer("trainer-0")
        engine = world.engine("engine-0", world.folder / "model")
        _behind_the_double(engine)
        with Publisher(rank=0, world_size=1, directory=trainer.volume) as publisher:
            world.wait_for_engines(1, seconds=120)
            made = Bench(world, engine, publisher)
            yield made
            made.close()
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("flip", id="one flipped bit after verification"),
        pytest.param("skip", id="one skipped layer"),
        pytest.param("late", id="a resume before the apply"),
    ],
)
def test_a_fault_in_the_apply_is_seen(bench: Bench, fault: str) -> None:
    """Without the fault no answer is torn and all tell versions apart; with it, answers are torn."""
    sound = bench.publish("")
    assert (sound.checked, sound.torn, sound.distinguishable) == (PROBES, 0, PROBES)
    assert bench.publish(fault).torn > 0
