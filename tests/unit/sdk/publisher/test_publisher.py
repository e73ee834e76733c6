"""A publish reaches the arenas whole, always exhausts its input, and tells what went wrong instead of raising."""

import gc
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from weightsync import AgentUnavailable, InputError, Publisher, PublishFailed, Refused
from weightsync.arena import Arena
from weightsync.convert.replay import Replayer
from weightsync.publisher.replicas import OpenReplicas
from weightsync.testing import FakeAgent, plain_program

SHAPES: Mapping[str, tuple[int, ...]] = {
    "embed.weight": (64, 48),
    "layers.0.weight": (256, 128),
    "layers.1.weight": (256, 128),
    "norm.weight": (),
}
PROGRAM = plain_program({name: ("bfloat16", shape) for name, shape in SHAPES.items()})
LIMIT = 4096  # bytes of a bucket: many in each of these tensors


def state(step: int = 1) -> dict[str, torch.Tensor]:
    """Float32 tensors that differ from step to step."""
    return {name: torch.full(shape, float(step)) + torch.rand(shape) for name, shape in SHAPES.items()}


def bfloat16(tensor: torch.Tensor) -> bytes:
    """As the engine holds it."""
    return bytes(tensor.to(torch.bfloat16).reshape(-1).view(torch.uint8).tolist())


def wait_for(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.005)


@pytest.fixture
def agent(volume: Path) -> Iterator[FakeAgent]:
    """One program's agent."""
    with FakeAgent(volume, [PROGRAM], bucket_bytes=LIMIT) as made:
        yield made


@pytest.fixture
def publisher(agent: FakeAgent) -> Iterator[Publisher]:
    """The only rank, with short waits."""
    with Publisher(0, 1, directory=agent.directory, timeout=10, connect_timeout=5) as made:
        yield made


class Input:
    """A generator of pairs that knows whether it was exhausted."""

    def __init__(self, pairs: Iterable[object], *, raises: BaseException | None = None) -> None:
        self.pairs, self.raises, self.exhausted = list(pairs), raises, False

    def __iter__(self) -> Iterator[Any]:
        yield from self.pairs
        self.exhausted = True
        if self.raises is not None:
            raise self.raises


# --- what arrives ---


@pytest.mark.parametrize(
    "form", [pytest.param(dict, id="a state dict"), pytest.param(lambda s: Input(s.items()), id="a generator")]
)
def test_every_version_arrives_whole(agent: FakeAgent, publisher: Publisher, form: Callable[[Any], Any]) -> None:
    """First publish, and later ones in both arenas: each parameter's bytes, and every bucket reported when full."""
    for step in range(1, 5):
        tensors = state(step)
        handle = publisher.publish(form(tensors), label=f"step {step}")
        handle.copied(timeout=0)
        seen = agent.published[-1]
        assert (seen.label, seen.sequence, seen.copied) == (f"step {step}", step, True)
        for name, tensor in tensors.items():
            assert seen.parameter(name) == bfloat16(tensor)
        outcome = handle.raise_on_failure(timeout=10)
        assert outcome.status == "Current"
        assert outcome.version is not None
        assert handle.version == outcome.version.name == seen.version.name  # type: ignore[union-attr]
    assert agent.published[0].names == tuple(SHAPES)
    assert agent.published[1].names == ()
    assert len(agent.connected) == 1


def test_buckets_are_reported_while_the_rest_is_filled(agent: FakeAgent, publisher: Publisher) -> None:
    """From the second publish on, the agent can write the first tensor before the generator makes the second."""
    publisher.publish(state())

    def slowly() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in state(2).items():
            yield name, tensor
            if name == "layers.0.weight":
                wait_for(lambda: len(agent.published[-1].filled.get(PROGRAM.digest, {})) >= 8)

    assert publisher.publish(slowly()).outcome(10).status == "Current"


def test_progress_is_told_in_bytes_to_any_thread(agent: FakeAgent, publisher: Publisher) -> None:
    """It rises with each tensor to all of them, and can be read after the Publisher was closed, too."""
    publisher.publish(state())
    total = sum(p.nbytes for p in PROGRAM.layout.parameters)
    assert publisher.progress[:2] == (total, total)
    seen = []

    def pairs() -> Iterator[tuple[str, torch.Tensor]]:
        for pair in state().items():
            seen.append(publisher.progress.copied)
            yield pair

    handle = publisher.publish(pairs())
    assert seen == sorted(set(seen)), "each tensor's bytes are counted when it was copied"
    assert seen[0] == 0
    publisher.close()
    assert publisher.progress[:2] == (total, total)
    assert publisher.progress.seconds > 0
    assert handle.notes == ()


def test_no_tensor_is_kept(publisher: Publisher) -> None:
    """While the generator makes the next tensor, the one before is gone; so is everything after publish()."""
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def one_by_one() -> Iterator[tuple[str, torch.Tensor]]:
        for name, shape in SHAPES.items():
            assert not alive
            tensor = torch.ones(shape)
            alive.add(tensor)
            yield name, tensor
            del tensor

    gc.disable()
    try:
        for _ in range(3):
            publisher.publish(one_by_one()).raise_on_failure(10)
            assert not alive
    finally:
        gc.enable()


def anonymous_memory() -> int:
    """Bytes of this process's memory that is no file's."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_the_state_is_never_copied_as_a_whole(volume: Path) -> None:
    """64 MiB go through a publish while the process grows by a few tensors only, cast or not."""
    table = {f"w{i}": ("float32" if i % 2 else "bfloat16", (512, 512)) for i in range(64)}
    with FakeAgent(volume, [plain_program(table)]) as agent, Publisher(0, 1, directory=volume) as publisher:
        grown: list[int] = []

        def gathered() -> Iterator[tuple[str, torch.Tensor]]:
            before = anonymous_memory()
            for name in table:
                yield name, torch.rand(512, 512)
                grown.append(anonymous_memory() - before)

        for _ in range(2):
            publisher.publish(gathered()).raise_on_failure(10)
            agent.published[-1].payloads.clear()
    assert max(grown) < 16 * 2**20


def test_stages_fill_what_they_own(volume: Path) -> None:
    """Two ranks of two stages: a tied tensor belongs to the lower, and together they fill every byte."""
    program = plain_program(dict.fromkeys(("a", "tied", "b"), ("float32", (64, 64))))
    tensors = {name: torch.rand(64, 64) for name in ("a", "tied", "b")}
    with FakeAgent(volume, [program]) as agent:
        publishers = [Publisher(rank, 2, rank, 2, directory=volume, timeout=20) for rank in range(2)]

        def run(rank: int) -> None:
            for _ in range(2):
                names = ("a", "tied") if rank == 0 else ("tied", "b")
                publishers[rank].publish({name: tensors[name] for name in names}).raise_on_failure(10)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        for made in publishers:
            made.close()
        assert [seen.failed for seen in agent.published] == [None] * 4
        for seen in agent.published:
            owned = seen.replicas[0].owned
            assert owned == (("a", "tied") if seen.rank == 0 else ("b",))
            for name in owned:
                assert seen.parameter(name) == tensors[name].numpy().tobytes()


def test_nobody_to_feed(volume: Path) -> None:
    """Without targets the input is exhausted all the same; NoTargets is no failure."""
    with FakeAgent(volume) as agent, Publisher(0, 1, directory=volume) as publisher:
        given = Input(state().items())
        handle = publisher.publish(given)
        assert given.exhausted
        assert handle.raise_on_failure(10).status == "NoTargets"
        assert agent.published[0].copied


@pytest.mark.parametrize("wrapped", ["_orig_mod.{}", "module.{}", "_fsdp_wrapped_module._orig_mod.{}"])
def test_names_that_a_wrapper_changed_are_the_checkpoints(
    agent: FakeAgent, publisher: Publisher, wrapped: str
) -> None:
    """In the first publish, in which the agent learns the names, as in later ones."""
    for step in range(1, 3):
        tensors = state(step)
        publisher.publish({wrapped.format(name): tensor for name, tensor in tensors.items()}).raise_on_failure(10)
        for name, tensor in tensors.items():
            assert agent.published[-1].parameter(name) == bfloat16(tensor)
    assert agent.published[0].names == tuple(SHAPES)


def test_a_tied_tensor_may_stand_in_a_state_dict_under_a_name_that_the_checkpoint_lacks(
    agent: FakeAgent, publisher: Publisher
) -> None:
    """As `lm_head.weight` does in state dicts of models with tied embeddings; before or after the other name."""
    for first in (True, False):
        tensors = state()
        tie = {"lm_head.weight": tensors["embed.weight"].detach()}
        publisher.publish({**tie, **tensors} if first else {**tensors, **tie}).raise_on_failure(10)
        assert agent.published[-1].parameter("embed.weight") == bfloat16(tensors["embed.weight"])
    assert agent.published[0].names == tuple(SHAPES)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda t: t.clone(), id="equal, in another memory"),
        pytest.param(lambda t: t.view(48, 64), id="another shape of the same memory"),
        pytest.param(lambda t: t.view(torch.int32), id="another dtype of the same memory"),
        pytest.param(lambda t: t.to("meta"), id="without memory"),
        pytest.param(lambda t: 3, id="no tensor"),
    ],
)
def test_what_is_not_tied_needs_a_name_of_the_checkpoint(
    publisher: Publisher, other: Callable[[torch.Tensor], Any]
) -> None:
    """It is refused by its name, as it always is from a generator, which may use a memory for one tensor after the
    other."""
    tensors = state()
    wrong = {**tensors, "lm_head.weight": other(tensors["embed.weight"])}
    assert "lm_head.weight is not in the copy program" in publisher.publish(wrong).outcome(10).message
    tied = {**tensors, "lm_head.weight": tensors["embed.weight"]}
    assert "lm_head.weight is not in the copy program" in publisher.publish(iter(tied.items())).outcome(10).message


# --- what goes wrong ---

# Where the agent can fail; names are asked for in a first publish only.
STEPS = pytest.mark.parametrize(
    ("step", "first"),
    [
        pytest.param(step, first, id=f"{step} of a {'first' if first else 'later'} publish")
        for first in (True, False)
        for step in ("publishes", "names", "filled", "copied")
        if first or step != "names"
    ],
)


@STEPS
def test_a_refusal_at_any_step_exhausts_the_input(
    agent: FakeAgent, publisher: Publisher, step: str, first: bool
) -> None:
    """The handle has the agent's own reason and sentence, the agent learns of it, and the next publish works."""
    if not first:
        publisher.publish(state()).raise_on_failure(10)
    agent.refuse(step, "not now", reason="Busy")
    given = Input(state(2).items())
    handle = publisher.publish(given)
    assert given.exhausted
    outcome = handle.outcome(10)
    assert (outcome.status, outcome.reason, outcome.message) == ("Failed", "Busy", "not now")
    with pytest.raises(PublishFailed, match="Busy: not now"):
        handle.raise_on_failure()
    if step != "publishes":
        assert agent.published[-1].failed is not None
        assert agent.published[-1].failed.reason == "Busy"
    publisher.publish(state(3)).raise_on_failure(10)


@STEPS
def test_a_connection_lost_at_any_step_is_made_anew(
    agent: FakeAgent, publisher: Publisher, step: str, first: bool
) -> None:
    """A request that was not answered is sent again: nothing is lost, and nothing is harmed by coming twice.

    Only the first report of filled buckets of all, on a connection that has not carried an answer, is not.
    """
    if not first:
        publisher.publish(state()).raise_on_failure(10)
    agent.break_off(step)
    handle = publisher.publish(state(2))
    if first and step == "filled":
        assert handle.outcome(10).reason == "AgentUnavailable"
    else:
        handle.raise_on_failure(10)
        assert agent.published[-1].copied


@pytest.mark.parametrize("after", range(len(SHAPES) + 1))
def test_an_agent_that_goes_away_in_mid_publish(agent: FakeAgent, publisher: Publisher, after: int) -> None:
    """Wherever it happens the input is exhausted, and the outcome says AgentUnavailable with the socket's path."""
    publisher.publish(state()).raise_on_failure(10)
    publisher._link.patience = publisher._sender._link.patience = 0
    exhausted = False

    def interrupted() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal exhausted
        for i, (name, tensor) in enumerate(state(2).items()):
            if i == after:
                agent.stop()
            yield name, tensor
        if after == len(SHAPES):
            agent.stop()
        exhausted = True

    handle = publisher.publish(interrupted())
    assert exhausted
    outcome = handle.outcome(10)
    assert (outcome.status, outcome.reason) == ("Failed", "AgentUnavailable")
    assert str(agent.directory / "agent.sock") in outcome.message


def test_an_agent_that_comes_back_gets_the_next_publish(agent: FakeAgent, publisher: Publisher) -> None:
    """It is greeted with the same nonce, asks for the names again, and its new arenas are filled, not the old."""
    publisher.publish(state()).raise_on_failure(10)
    agent.stop()
    agent.start()
    tensors = state(2)
    publisher.publish(tensors).raise_on_failure(10)
    assert agent.published[-1].parameter("embed.weight") == bfloat16(tensors["embed.weight"])
    assert agent.published[-1].names == tuple(SHAPES)
    assert len({connect.nonce for connect in agent.connected}) == 1


class SlowToTakeReports(FakeAgent):
    """Keeps a report of filled buckets waiting for the message of failure that must not overtake it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.order: list[str] = []
        self.begun = threading.Event()
        self.failed = threading.Event()

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes] | None:
        step = path.rsplit("/", 1)[-1]
        if step == "filled":
            self.begun.set()
            self.failed.wait(0.2)
        if step == "failed":
            self.failed.set()
        answer = super()._answer(method, path, body)
        self.order.append(step)
        return answer


def test_no_report_arrives_after_a_failure(volume: Path) -> None:
    """It would be taken for the next version's bytes: the report under way is waited for, the others are dropped."""
    slow = SlowToTakeReports(volume, [PROGRAM], bucket_bytes=LIMIT)
    with slow as agent, Publisher(0, 1, directory=volume, timeout=10) as publisher:
        publisher.publish(state()).raise_on_failure(10)
        agent.order.clear()
        agent.begun.clear()

        def wrong_in_the_end() -> Iterator[tuple[str, torch.Tensor]]:
            yield from state().items()
            assert agent.begun.wait(10)
            yield "unknown", torch.ones(1)

        publisher.publish(wrong_in_the_end())
        assert agent.order[:2] == ["publishes", "filled"]
        assert agent.order.index("failed") == len(agent.order) - 1


def without(name: str) -> dict[str, torch.Tensor]:
    """A state that lacks one tensor."""
    return {key: tensor for key, tensor in state().items() if key != name}


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        pytest.param([*state().items(), ("embed.wieght", torch.ones(1))], "embed.wieght", id="a misspelt name"),
        pytest.param([("norm.weight", torch.ones(7)), *state().items()], r"norm.weight.*\(7,\)", id="a wrong shape"),
        pytest.param([*state().items(), *state().items()], "given twice", id="a tensor given twice"),
        pytest.param(
            [*state().items(), ("module.embed.weight", torch.ones(64, 48))],
            "embed.weight and module.embed.weight are both",
            id="a tensor given under two names",
        ),
        pytest.param([torch.ones(2), *state().items()], "yielded a Tensor", id="no pair"),
        pytest.param([(1, torch.ones(2)), *state().items()], "yielded 1 as a name", id="a name that is no string"),
        pytest.param(list(without("norm.weight").items()), "norm.weight", id="a tensor missing"),
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["first publish", "later publish"])
def test_a_wrong_input_is_exhausted_and_told(
    agent: FakeAgent, publisher: Publisher, pairs: list[object], words: str, first: bool
) -> None:
    """InputError in the outcome and at the agent; the version is never complete; the next publish works."""
    if not first:
        publisher.publish(state()).raise_on_failure(10)
    given = Input(pairs)
    handle = publisher.publish(given)
    assert given.exhausted
    with pytest.raises(PublishFailed, match=f"(InvalidInput|CoverageIncomplete): .*{words}"):
        handle.raise_on_failure(10)
    seen = agent.published[-1]
    assert seen.failed is not None
    assert not seen.copied
    publisher.publish(state(3)).raise_on_failure(10)


def test_missing_tensors_are_named_where_nothing_was_published_before(agent: FakeAgent, publisher: Publisher) -> None:
    """The first publish failed at its end: the agent knows the names, and the second lacks one."""
    agent.refuse("copied")
    publisher.publish(state())
    outcome = publisher.publish(without("norm.weight")).outcome(10)
    assert outcome.message.startswith("1 of 4 tensors were not published: norm.weight")


def test_other_names_than_before_are_told(volume: Path) -> None:
    """Where they only show at the end (nobody needs the tensor), the outcome still names what is missing and new."""
    with FakeAgent(volume) as agent, Publisher(0, 1, directory=volume) as publisher:
        publisher.publish({"a": torch.ones(1), "b": torch.ones(1)}).raise_on_failure(10)
        handle = publisher.publish({"a": torch.ones(1), "c": torch.ones(1)})
        with pytest.raises(PublishFailed, match=r"1 missing \(b\) and 1 new \(c\)"):
            handle.raise_on_failure(10)
        assert agent.published[-1].failed is not None
        publisher.publish({"a": torch.ones(1), "b": torch.ones(1)}).raise_on_failure(10)


@pytest.mark.parametrize(
    "error", [ValueError("a gather failed"), KeyboardInterrupt()], ids=["an error", "an interrupt"]
)
def test_what_the_input_raises_is_raised_again(agent: FakeAgent, publisher: Publisher, error: BaseException) -> None:
    """The agent learns that this version will never be complete; the next publish works."""
    with pytest.raises(type(error)) as caught:
        publisher.publish(Input(list(state().items())[:2], raises=error))
    assert caught.value is error
    failed = agent.published[-1].failed
    assert failed is not None
    assert failed.reason == "InputRaised"
    assert type(error).__name__ in failed.message
    publisher.publish(state(2)).raise_on_failure(10)


def test_an_input_that_cannot_be_iterated_is_raised_again(agent: FakeAgent, publisher: Publisher) -> None:
    """Nothing can be exhausted; other ranks learn of it by the agent."""
    with pytest.raises(TypeError):
        publisher.publish(3)  # type: ignore[arg-type]
    assert agent.published[-1].failed is not None


def test_an_unforeseen_error_is_raised_after_the_input_is_exhausted(
    agent: FakeAgent, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of ours must not be swallowed, nor hang the other ranks."""

    def broken(*_: object, **__: object) -> list[int]:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Replayer, "feed", broken)
    given = Input(state().items())
    with pytest.raises(ZeroDivisionError):
        publisher.publish(given)
    assert given.exhausted
    assert agent.published[-1].failed is not None
    monkeypatch.undo()
    publisher.publish(state()).raise_on_failure(10)


def test_an_interrupt_while_copying_is_raised_after_the_input_is_exhausted(
    agent: FakeAgent, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks may be gathering; a second one, in the input itself, is raised at once."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Replayer, "feed", interrupted)
    given = Input(state().items())
    with pytest.raises(KeyboardInterrupt):
        publisher.publish(given)
    assert given.exhausted
    assert agent.published[-1].failed is not None
    twice = Input(list(state().items())[:2], raises=SystemExit(1))
    with pytest.raises(SystemExit):
        publisher.publish(twice)
    monkeypatch.undo()
    publisher.publish(state()).raise_on_failure(10)


def test_an_unforeseen_error_at_the_beginning_is_raised_after_the_input_is_exhausted(
    agent: FakeAgent, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one in the middle; so is a label that is no string."""
    monkeypatch.setattr(OpenReplicas, "refresh", lambda _: 1 / 0)
    for label, error in (("", ZeroDivisionError), (3, TypeError)):
        given = Input(state().items())
        with pytest.raises(error):
            publisher.publish(given, label=label)  # type: ignore[arg-type]
        assert given.exhausted
    monkeypatch.undo()
    publisher.publish(state()).raise_on_failure(10)


def test_a_full_volume_is_an_error_not_a_crash(
    agent: FakeAgent, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first publish nobody has allocated the pages yet: each tensor's are, before it is copied."""
    allocated: list[list[tuple[int, int]]] = []

    def full(self: Arena, extents: Iterable[tuple[int, int]]) -> None:
        allocated.append(list(extents))
        if len(allocated) == 2:
            raise InputError("no room")

    monkeypatch.setattr(Arena, "prefault", full)
    given = Input(state().items())
    handle = publisher.publish(given)
    assert given.exhausted
    assert handle.outcome(10).message == "no room"
    first, second = PROGRAM.layout.parameters[:2]
    assert allocated == [[(p.offset, p.offset + p.nbytes)] for p in (first, second)]
    with Arena.open(agent.directory / agent.published[0].replicas[0].arena_path) as arena:
        assert not any(arena.view[second.offset :])


def test_a_sealed_arena_is_not_written(agent: FakeAgent, publisher: Publisher) -> None:
    """Its bytes are a version that others may read."""
    publisher.publish(state()).raise_on_failure(10)
    publisher.publish(state(2)).raise_on_failure(10)
    version = agent.published[0].version
    assert version is not None
    begin = agent._begin

    def begin_and_seal(body: Any) -> Any:
        answer = begin(body)
        next(iter(agent._arenas.values())).seal("0" * 32, version)
        return answer

    agent._begin = begin_and_seal  # type: ignore[method-assign]
    before = next(iter(agent._arenas.values())).view.tobytes()
    assert "SEALED" in publisher.publish(state(3)).outcome(10).message
    assert next(iter(agent._arenas.values())).view.tobytes() == before


def test_a_long_label_is_told_after_the_publish_began(agent: FakeAgent, publisher: Publisher) -> None:
    """The other ranks wait for this one to begin."""
    given = Input(state().items())
    handle = publisher.publish(given, label="x" * 300)
    assert given.exhausted
    assert "300 characters" in handle.outcome(10).message
    assert agent.published[-1].failed is not None


def test_a_failed_publish_is_logged(agent: FakeAgent, publisher: Publisher, caplog: pytest.LogCaptureFixture) -> None:
    """Also for those who never look at their handles; nothing is printed."""
    agent.refuse("publishes", "not now")
    publisher.publish(state())
    assert "publish 1 of rank 0 failed: not now" in caplog.text


# --- its life ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param((2, 2), "rank 2 is none of 2", id="a rank beyond the world"),
        pytest.param((-1, 2), "rank -1", id="a negative rank"),
        pytest.param((0, 1, 1, 1), "stage 1 is none of 1", id="a stage beyond the stages"),
    ],
)
def test_numbers_that_cannot_be(arguments: tuple[int, ...], words: str, volume: Path) -> None:
    """InputError before anything is dialled."""
    with pytest.raises(InputError, match=words):
        Publisher(*arguments, directory=volume)


def test_no_agent_at_the_start(volume: Path) -> None:
    """AgentUnavailable with the path, after the time allowed."""
    with pytest.raises(AgentUnavailable, match=str(volume)):
        Publisher(0, 1, directory=volume, connect_timeout=0)


def test_an_agent_that_refuses_the_rank(agent: FakeAgent) -> None:
    """Its own sentence is raised at once: a wrong rank shows at the start."""
    agent.refuse("connect", "rank 0 belongs to another trainer")
    with pytest.raises(Refused, match="another trainer"):
        Publisher(0, 1, directory=agent.directory)


def test_the_directory_comes_from_the_environment(agent: FakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """WEIGHTSYNC_DIR names the volume where no directory is given."""
    monkeypatch.setenv("WEIGHTSYNC_DIR", str(agent.directory))
    with Publisher(3, 8, 1, 2):
        who = agent.connected[0]
    assert (who.rank, who.world_size, who.stage, who.stages) == (3, 8, 1, 2)


def test_a_closed_publisher_still_exhausts_its_input(agent: FakeAgent, publisher: Publisher) -> None:
    """The outcome says that it is closed; closing twice is fine."""
    publisher.close()
    publisher.close()
    given = Input(state().items())
    handle = publisher.publish(given)
    assert given.exhausted
    assert "closed" in handle.outcome(10).message
    assert agent.published == []


def test_arenas_that_the_agent_dropped_are_let_go(agent: FakeAgent, publisher: Publisher) -> None:
    """Each publish unmaps files that are gone: their memory would be held for ever."""
    publisher.publish(state()).raise_on_failure(10)
    old = weakref.ref(next(iter(publisher._open._open.values())))
    agent.stop()
    shutil.rmtree(agent.directory / "arenas")
    agent.start()
    publisher.publish(state()).raise_on_failure(10)
    gc.collect()
    assert old() is None
