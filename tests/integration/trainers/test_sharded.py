"""Publishes of tensors that are sharded over ranks, in two real processes of a gloo group."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build import sharded, sharded_models
from tests.build.ranks import Ranks
from tests.build.small_model import checkpoint
from tools.world.pod import Pod
from tools.world.world import World
from weightsync import names
from weightsync.arena import Arena, ArenaState
from weightsync.convert.program import CopyProgram
from weightsync.convert.replay import Replayer

__all__ = ["checkpoint"]

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "trainers.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```python (\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
SECONDS = 40.0  # of a scenario: gloo itself gives up after a minute


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(tmp_path_factory.mktemp("ranks")) as made:
        yield made


@pytest.mark.parametrize(
    ("form", "threads"),
    [
        pytest.param("state dict", 1, id="a state dict"),
        pytest.param("state dict", 4, id="a state dict, several threads"),
        pytest.param("generator", 1, id="a generator"),
        pytest.param("inference", 1, id="inside inference mode"),
    ],
)
def test_every_kind_of_sharding_arrives_whole(ranks: Ranks, form: str, threads: int) -> None:
    """Rows, columns, uneven, replicated, partial, in two dimensions, parameters, casts: the full tensor's bytes."""
    ranks.run(sharded.publishes_every_kind, form, threads, seconds=SECONDS)


def test_a_stage_gathers_on_its_own_mesh(ranks: Ranks) -> None:
    """A mesh of part of the ranks is gathered by those; a tensor of another mesh is refused by name."""
    ranks.run(sharded.publishes_stages, seconds=SECONDS)


def test_a_replica_of_the_shards_publishes_alone(ranks: Ranks) -> None:
    """Nobody is waited for but those whose shards are needed."""
    ranks.run(sharded.one_replica_publishes, seconds=SECONDS)


@pytest.mark.parametrize("threads", [1, 4])
def test_no_gathered_tensor_is_kept(ranks: Ranks, threads: int) -> None:
    """Each is let go of before the next one is made (gloo's thread may hold the last one a moment longer), though a
    state dict's own tensors may be kept; so it is on a rank that feeds nobody."""
    (most, kept), (most_of_none, _) = ranks.run(sharded.keeps_nothing, threads, seconds=SECONDS)
    assert max(most, most_of_none) <= 1
    assert kept == {False}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param("publishes", "Failed Superseded", id="refused at the beginning"),
        pytest.param("filled", "Failed Superseded", id="refused in the middle"),
        pytest.param("copied", "Failed Superseded", id="refused at the end"),
        pytest.param("the agent gone", "Failed AgentUnavailable", id="its agent goes away"),
        pytest.param("closed", "Failed InvalidInput", id="its Publisher is closed"),
        pytest.param("a bug before it begins", "PermissionError", id="meets an error before it begins"),
        pytest.param("a bug", "ZeroDivisionError", id="meets an error while it copies"),
        pytest.param("an interrupt", "KeyboardInterrupt", id="is interrupted while it copies"),
        pytest.param("an exit", "SystemExit", id="is told to exit while it copies"),
    ],
)
def test_one_rank_that_fails_hangs_no_other(ranks: Ranks, what: str, said: str, which: int) -> None:
    """It goes on gathering; the other rank's publish is whole, and so is the next one of both."""
    expected = ["Current", "Current"]
    expected[which] = said
    assert ranks.run(sharded.one_rank_fails, what, which, seconds=SECONDS) == expected


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("what", ["another name", "another shape", "no pairs"])
def test_one_rank_that_gives_something_else_hangs_no_other(ranks: Ranks, what: str, which: int) -> None:
    """Nobody can tell whose shards were put together: no rank's publish is whole, and the next one of both is."""
    found = ranks.run(sharded.one_rank_fails, what, which, seconds=SECONDS)
    assert found == ["Failed InvalidInput"] * 2


def test_ranks_that_give_tensors_in_different_orders_are_told(ranks: Ranks) -> None:
    """Their shards were put together without an error of torch: no rank's version may be whole."""
    for message in ranks.run(sharded.another_order, seconds=SECONDS):
        assert message.startswith(
            "the 2 ranks that share sharded tensors gave publish() different ones, or in different"
        )


def test_a_gather_that_fails_is_raised_at_once(ranks: Ranks) -> None:
    """Nobody knows how far the others are; the agent is told which tensor it was."""
    for said in ranks.run(sharded.a_gather_fails, seconds=SECONDS):
        assert said == (
            "InputRaised: the trainer's input raised RuntimeError: no backend; "
            "while tensor layers.1.weight was gathered from the ranks of its mesh"
        )


@pytest.mark.parametrize(
    ("kind", "tied"),
    [
        *((kind, False) for kind in ("ddp", "compile", "fsdp2", "tensor_parallel", "fsdp1")),
        *((kind, True) for kind in ("ddp", "compile", "fsdp2", "tensor_parallel")),
    ],
)
def test_the_pages_code_publishes_the_model(ranks: Ranks, kind: str, tied: bool) -> None:
    """As it stands there, on two ranks: every tensor arrives whole, under the checkpoint's name, in its dtype; also
    where the embeddings are tied to the head."""
    ranks.run(sharded_models.runs_a_block, BLOCKS[kind], tied, seconds=SECONDS)


def test_every_block_that_is_said_to_run_does() -> None:
    """A kind that the page adds is in the list above."""
    assert set(BLOCKS) == {"ddp", "compile", "fsdp2", "tensor_parallel", "fsdp1"}


def parameters(pod: Pod) -> tuple[CopyProgram, bytes]:
    """What the engine's sealed arena holds, and how it is made."""
    (path,) = (pod.volume / names.ARENAS).iterdir()
    with Arena.open(path) as arena:
        assert arena.header.state == ArenaState.SEALED
        (program,) = (
            CopyProgram.load(each)
            for each in (pod.volume / names.LAYOUTS).glob("*.json")
            if each.stem == arena.header.program
        )
        return program, bytes(arena.view)


@pytest.mark.mooncake
@pytest.mark.timeout(240)
def test_a_sharded_model_reaches_a_real_engine(ranks: Ranks, checkpoint: Path) -> None:
    """FSDP2 trains on two ranks, each beside an agent: the engine's arena has the whole tensors' bytes at every step.
    When one rank's agent dies while all gather, both ranks come to an end, and the engine has a whole version."""
    with World({"strategy": {"deadlineSeconds": 5}}) as world:
        trainers = [world.trainer(f"trainer-{rank}") for rank in range(2)]
        engine = world.engine("engine-0", checkpoint)
        ranks.run(sharded_models.begins_to_train, [trainer.volume for trainer in trainers], seconds=SECONDS)
        world.wait_for_engines(1)
        for _ in range(2):
            (version, said, wholes), (same, _, _) = ranks.run(sharded_models.trains_and_publishes, seconds=60)
            assert said == "1 engines, none behind"
            assert version is not None
            assert version == same
            world.wait_for_version(engine, version)
            program, found = parameters(engine)
            expected = bytearray(program.layout.nbytes)
            replayer = Replayer(program, memoryview(expected))
            for name, whole in wholes.items():
                replayer.feed(name, whole)
            replayer.finish()
            for p in program.layout.parameters:
                place = slice(p.offset, p.offset + p.nbytes)
                assert found[place] == expected[place], p.name
        _, reason = ranks.run(sharded_models.loses_an_agent, trainers[1].agent.pid, seconds=60)
        assert reason == "AgentUnavailable"
        assert world.call(engine, "/v1/readback", {})["digestOk"]
        ranks.run(sharded_models.ends_training, seconds=SECONDS)
