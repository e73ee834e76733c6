"""A publish that several threads fill ends as one does: whole, or with the error of the tensor that was wrong."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from weightsync import InputError, Publisher
from weightsync.convert import sharing
from weightsync.convert.portion import Copy
from weightsync.convert.replay import Replayer
from weightsync.convert.strands import FillThreads
from weightsync.testing import FakeAgent, plain_program

SHAPES: Mapping[str, tuple[int, ...]] = {f"layers.{n}.weight": (64, 48) for n in range(12)}
PROGRAM = plain_program({name: ("bfloat16", shape) for name, shape in SHAPES.items()})


def state(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """Of other bytes each time."""
    return {name: torch.rand(shape).to(dtype) for name, shape in SHAPES.items()}


def filling() -> list[str]:
    """Threads that fill, in this process."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("weightsync-fill")]


class Anew(Mapping[str, torch.Tensor]):
    """Makes each tensor in the same memory when it is asked for."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._memory = torch.empty(64, 48, dtype=torch.bfloat16)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._memory.copy_(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class AnewEachTime(dict[str, torch.Tensor]):
    """A dict whose values are not what it gives."""

    def items(self) -> Any:
        """From one memory."""
        return Anew(dict(super().items())).items()


def again(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """A generator that gathers into the same memory."""
    yield from Anew(tensors).items()


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a few kilobytes go to the threads, too."""
    for size in ("SMALL", "LEAST"):
        monkeypatch.setattr(sharing, size, 0)


@pytest.fixture
def agent(volume: Path) -> Iterator[FakeAgent]:
    """One program's agent, with buckets smaller than its tensors."""
    with FakeAgent(volume, [PROGRAM], bucket_bytes=4096) as made:
        yield made


@pytest.fixture
def publisher(agent: FakeAgent) -> Iterator[Publisher]:
    """The only rank; nothing of its threads is left between publishes."""
    with Publisher(0, 1, directory=agent.directory, timeout=10, connect_timeout=5, fill_threads=4) as made:
        yield made
    assert filling() == []


@pytest.mark.parametrize(
    ("form", "kept"),
    [
        pytest.param(dict, True, id="a state dict"),
        pytest.param(OrderedDict, True, id="an ordered one, as torch makes them"),
        pytest.param(AnewEachTime, False, id="a dict that makes its tensors anew"),
        pytest.param(Anew, False, id="a mapping that makes its tensors anew"),
        pytest.param(again, False, id="a generator into one memory"),
    ],
)
def test_every_version_arrives_whole(
    agent: FakeAgent, publisher: Publisher, form: Callable[[Any], Any], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only tensors that nobody else may change are left to be copied later."""
    feed, found = Replayer.feed, set[bool]()

    def watched(*arguments: Any, kept: bool) -> None:
        found.add(kept)
        feed(*arguments, kept=kept)

    monkeypatch.setattr(Replayer, "feed", watched)
    for _ in range(3):
        tensors = state()
        publisher.publish(form(tensors)).raise_on_failure(10)
        for name, tensor in tensors.items():
            assert agent.published[-1].parameter(name) == tensor.view(torch.uint8).numpy().tobytes()
    assert found == {kept}
    assert publisher.progress.copied == publisher.progress.total


@pytest.mark.parametrize("first", [True, False], ids=["first publish", "later publish"])
def test_a_tensor_that_cannot_be_copied_is_named(
    agent: FakeAgent, publisher: Publisher, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the outcome and at the agent; no thread is left with the arena."""
    if not first:
        publisher.publish(state()).raise_on_failure(10)
    convert = Copy.convert

    def fail(copy: Copy, name: str, part: torch.Tensor, *rows: Any) -> None:
        convert(copy, name, torch.ones(64, 48, 2) if name == "layers.7.weight" else part, *rows)

    monkeypatch.setattr(Copy, "convert", fail)
    handle = publisher.publish(state(torch.float32))
    assert filling() == []
    outcome = handle.outcome(10)
    assert outcome.reason == "InvalidInput"
    assert outcome.message.startswith("tensor layers.7.weight cannot be copied")
    assert agent.published[-1].failed is not None
    assert not agent.published[-1].copied
    monkeypatch.undo()
    publisher.publish(state()).raise_on_failure(10)


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), KeyboardInterrupt()], ids=["a bug", "an interrupt"])
def test_what_ends_the_copying_is_raised(
    agent: FakeAgent, publisher: Publisher, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent learns of it, and by then nobody writes."""

    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(Copy, "convert", broken)
    with pytest.raises(type(error)):
        publisher.publish(state(torch.float32))
    assert filling() == []
    assert agent.published[-1].failed is not None
    monkeypatch.undo()
    publisher.publish(state()).raise_on_failure(10)


def test_copying_ends_when_the_agent_refuses(
    agent: FakeAgent, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors that wait for a thread are left out then, and those to come are not even queued."""
    few = dict(list(state(torch.float32).items())[:3])
    publisher.publish(state()).raise_on_failure(10)
    agent.refuse("filled", "not now", reason="Busy")
    sender, convert, drain = publisher._sender, Copy.convert, FillThreads.drain
    copied, useless, draining = list[str](), list[bool](), threading.Event()

    def once_refused(copy: Copy, name: str, part: torch.Tensor, *rows: Any) -> None:
        if name == "layers.0.weight":
            assert draining.wait(10)
        else:
            with sender._changed:
                assert sender._changed.wait_for(lambda: sender._current and sender._current.error, 10)
        copied.append(name)
        convert(copy, name, part, *rows)

    def drained(threads: FillThreads, is_useless: Callable[[], bool] = lambda: False) -> None:
        draining.set()
        drain(threads, is_useless)
        useless.append(is_useless())

    monkeypatch.setattr(Copy, "convert", once_refused)
    monkeypatch.setattr(FillThreads, "drain", drained)
    assert publisher.publish(few).outcome(10).reason == "Busy"
    assert useless == [True]
    copied.clear()
    agent.refuse("filled", "not now", reason="Busy")
    assert publisher.publish(state(torch.float32)).outcome(10).reason == "Busy"
    assert "layers.11.weight" not in copied


@pytest.mark.parametrize(
    ("argument", "variable", "words"),
    [(0, "2", "0 threads cannot fill"), (None, "all", "WEIGHTSYNC_FILL_THREADS is 'all'")],
)
def test_a_number_of_threads_that_cannot_be(
    argument: int | None, variable: str, words: str, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before anything is connected."""
    monkeypatch.setenv("WEIGHTSYNC_FILL_THREADS", variable)
    with pytest.raises(InputError, match=words):
        Publisher(0, 1, directory=volume, fill_threads=argument)
