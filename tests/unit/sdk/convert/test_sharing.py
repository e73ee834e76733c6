"""However many threads fill a replica, bytes, digests and errors are those of one."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.build.fused import Fused, Watch, expected_payload, models, program_of, random_tensor, small_buckets
from weightsync.buckets import cut
from weightsync.convert import portion, sharing
from weightsync.convert.portion import Copy
from weightsync.convert.program import CopyProgram
from weightsync.convert.replay import Replayer
from weightsync.convert.sharing import SharedCopies, fill_threads
from weightsync.convert.strands import FillThreads
from weightsync.errors import InputError
from weightsync.testing import plain_program

COUNTS = [2, 4]
KEPT = [pytest.param(True, id="kept"), pytest.param(False, id="gone when taken")]


@pytest.fixture(scope="module", autouse=True)
def _tiny_parts() -> Iterator[None]:
    """Tensors of a few bytes are split as those of megabytes are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "LEAST", 24)
        patch.setattr(sharing, "PART", 4)
        patch.setattr(sharing, "SMALL", 24)
        patch.setattr(sharing, "BATCH", 3)
        yield


def filled(
    program: CopyProgram, tensors: dict[str, torch.Tensor], watch: Watch, threads: FillThreads | None, *, kept: bool
) -> dict[int, str]:
    """The digest of each bucket, as it was told; the bytes are in the watch's arena."""
    buckets = list(watch.buckets.values())
    replayer = Replayer(program, memoryview(watch.arena), list(tensors), buckets, threads=threads)
    digests: dict[int, str] = {}

    def told(full: list[tuple[int, str]]) -> None:
        watch(full)
        digests.update(full)

    for name, tensor in tensors.items():
        given_one = tensor.clone(memory_format=torch.preserve_format)
        replayer.feed(name, given_one, told, kept=kept)
        if not kept:
            given_one.zero_()
    replayer.finish()
    assert replayer.copied == replayer.nbytes
    assert sorted(watch.reported) == [bucket.offset for bucket in buckets]
    return digests


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("count", COUNTS)
@given(
    model=models(), cuts=st.tuples(st.sampled_from([8, 24, 64, 256, 4096]), st.booleans()), order=st.randoms()
)  # fmt: skip
@settings(max_examples=60)
def test_many_threads_fill_as_one_does(
    count: int, kept: bool, model: list[Fused], cuts: tuple[int, bool], order: object
) -> None:
    """Any slices, turns, fusions, casts and orders: each byte and each digest, and no bucket before its last byte."""
    size, scrambled = cuts
    program = program_of(model)
    parts = [part for parameter in model for part in parameter.parts]
    order.shuffle(parts)  # type: ignore[attr-defined]
    buckets = small_buckets(program, frozenset(part.name for part in parts), size)
    tensors = {part.name: random_tensor(part, "cpu", scrambled=scrambled) for part in parts}
    expected = expected_payload(model, program, tensors)
    watches = [Watch(bytearray(program.layout.nbytes), expected, buckets) for _ in range(2)]
    one = filled(program, tensors, watches[0], None, kept=kept)
    many = filled(program, tensors, watches[1], fill_threads(count), kept=kept)
    assert watches[0].arena == watches[1].arena == expected
    assert many == one


EXPERTS = plain_program({f"e{n}": ("bfloat16", (8, 40)) for n in range(30)})


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("count", [1, *COUNTS])
def test_buckets_that_fill_in_order_are_digested_by_all_threads(count: int, kept: bool) -> None:
    """Whole tensors, one after the other, over bucket edges, and again in the next publish: no digest is left out."""
    buckets = cut([(0, EXPERTS.layout.nbytes)], 4096)
    arena, digests = bytearray(EXPERTS.layout.nbytes), dict[int, str]()
    names = [tensor.name for tensor in EXPERTS.tensors]
    replayer = Replayer(EXPERTS, memoryview(arena), names, buckets, threads=fill_threads(count))
    for _ in range(2):
        digests.clear()
        replayer.begin()
        state = {name: torch.rand(8, 40).to(torch.bfloat16) for name in names}
        for name, tensor in state.items():
            replayer.feed(name, tensor, digests.update, kept=kept)
        replayer.finish()
        assert len(digests) == len(buckets)
        assert all(digests.values())
        for place, tensor in zip(EXPERTS.layout.parameters, state.values(), strict=True):
            assert arena[place.offset : place.offset + place.nbytes] == tensor.view(torch.uint8).numpy().tobytes()


def test_a_tied_tensor_is_copied_under_both_names() -> None:
    """The same memory is read by two threads."""
    program = plain_program({"embed": ("float32", (30, 40)), "head": ("float32", (30, 40))})
    arena, tied = bytearray(program.layout.nbytes), torch.rand(30, 40)
    replayer = Replayer(program, memoryview(arena), threads=fill_threads(2))
    for name in ("embed", "head"):
        replayer.feed(name, tied, kept=True)
    replayer.finish()
    for place in program.layout.parameters:
        assert arena[place.offset : place.offset + place.nbytes] == tied.numpy().tobytes()


def test_inference_mode_is_no_matter_to_threads() -> None:
    """What is made inside it is copied by threads that are not."""
    program = plain_program({"w": ("bfloat16", (30, 3)), "v": ("float32", (3, 30))})
    arena = bytearray(program.layout.nbytes)
    with torch.inference_mode():
        replayer = Replayer(program, memoryview(arena), threads=fill_threads(2))
        replayer.feed("w", torch.full((30, 3), 2.0), kept=True)
        replayer.feed("v", torch.nn.Parameter(torch.ones(30, 3)).t())
        replayer.finish()
    w, v = program.layout.parameters
    assert torch.frombuffer(arena, dtype=torch.bfloat16, offset=w.offset)[:90].tolist() == [2.0] * 90
    assert torch.frombuffer(arena, dtype=torch.float32, offset=v.offset)[:90].tolist() == [1.0] * 90


PAIR = plain_program({"a": ("float32", (40, 40)), "b": ("float32", (40, 40)), "c": ("bfloat16", (40, 40))})


def uncopyable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have torch fail to copy that tensor, in whichever thread."""
    convert = Copy.convert

    def fail(copy: Copy, of: str, part: torch.Tensor, rows: tuple[int, int] | None = None) -> None:
        convert(copy, of, torch.ones(40, 40, 2) if of == name else part, rows)

    monkeypatch.setattr(Copy, "convert", fail)


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("count", [1, *COUNTS])
def test_a_copy_that_fails_in_a_thread_is_an_error_that_names_its_tensor(
    count: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without threads; they have all ended then, and the next publish is as good as any."""
    uncopyable(monkeypatch, "b")
    arena = bytearray(PAIR.layout.nbytes)
    names = ["a", "b", "c"]
    buckets = cut([(0, PAIR.layout.nbytes)], 4096)
    replayer = Replayer(PAIR, memoryview(arena), names, buckets, threads=fill_threads(count))
    tensors = {name: torch.ones(40, 40, dtype=torch.float64) for name in names}
    with pytest.raises(InputError, match="tensor b cannot be copied"):  # noqa: PT012 - where it is seen is free
        for name, tensor in tensors.items():
            replayer.feed(name, tensor, kept=kept)
        replayer.finish()
    assert not [t for t in threading.enumerate() if t.name.startswith("weightsync-fill")]
    monkeypatch.undo()
    replayer.begin()
    told: list[int] = []
    for name, tensor in tensors.items():
        replayer.feed(name, tensor, lambda full: told.extend(offset for offset, _ in full), kept=kept)
    replayer.finish()
    assert sorted(told) == [bucket.offset for bucket in buckets]


@pytest.mark.parametrize("kept", KEPT)
def test_what_does_not_fit_is_refused_when_it_is_fed(kept: bool) -> None:
    """Before a thread has anything to do with it."""
    replayer = Replayer(PAIR, memoryview(bytearray(PAIR.layout.nbytes)), threads=fill_threads(2))
    with pytest.raises(InputError, match=r"tensor a has shape \(3,\)"):
        replayer.feed("a", torch.ones(3), kept=kept)
    replayer.abandon()


def test_an_abandoned_replay_tells_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even of what was running: it comes to its end, and is kept quiet."""
    began, go, told = threading.Event(), threading.Event(), list[object]()
    convert = Copy.convert

    def slowly(*arguments: object) -> None:
        began.set()
        assert go.wait(10)
        convert(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Copy, "convert", slowly)
    arena = bytearray(PAIR.layout.nbytes)
    buckets = cut([(0, PAIR.layout.nbytes)], 4096)
    replayer = Replayer(PAIR, memoryview(arena), ["a", "b", "c"], buckets, threads=fill_threads(2))
    for name in ("a", "b"):  # as many copies as are queued without waiting for one of them
        replayer.feed(name, torch.ones(40, 40, dtype=torch.float64), told.append, kept=True)
    assert began.wait(10)
    stopping, stop = threading.Event(), FillThreads.stop

    def stopped(threads: FillThreads) -> None:
        stopping.set()
        stop(threads)

    monkeypatch.setattr(FillThreads, "stop", stopped)
    abandoning = threading.Thread(target=replayer.abandon)
    abandoning.start()
    assert stopping.wait(10)
    assert abandoning.is_alive()
    go.set()
    abandoning.join(10)
    assert told == []
    replayer.close()


MIXED = plain_program(
    {"big": ("float32", (40,)), "small": ("float32", (4,)), "tiny": ("float32", (4,)), "wide": ("float32", (64, 16))}
)  # fmt: skip


@dataclass
class Halted:
    """The copy of ``big`` is halted, and ``small`` was fed meanwhile: it is held back behind it."""

    arena: bytearray
    replayer: Replayer
    threads: FillThreads
    go: threading.Event
    digests: dict[int, str]

    def settle(self) -> None:
        """Let it go on, and wait until the threads have nothing to do."""
        self.go.set()
        self.threads._wait(lambda: not (self.threads._ready or self.threads._running))


@pytest.fixture
def halted(monkeypatch: pytest.MonkeyPatch) -> Halted:
    """Buckets of 1024 bytes: the first one has a part of each tensor, ``wide`` is in five."""
    go, move, arena = threading.Event(), portion._memmove, bytearray(MIXED.layout.nbytes)

    def halting(*arguments: int) -> None:
        assert go.wait(10)
        move(*arguments)

    monkeypatch.setattr(portion, "_memmove", halting)
    threads = fill_threads(2)
    assert threads is not None
    names = [tensor.name for tensor in MIXED.tensors]
    buckets = cut([(0, MIXED.layout.nbytes)], 1024)
    replayer = Replayer(MIXED, memoryview(arena), names, buckets, threads=threads)
    made = Halted(arena, replayer, threads, go, {})
    for name, shape in (("big", (40,)), ("small", (4,))):
        replayer.feed(name, torch.ones(shape), made.digests.update, kept=True)
    return made


@pytest.mark.parametrize("kept", KEPT)
def test_what_was_held_back_goes_before_what_comes_after_it(halted: Halted, kept: bool) -> None:
    """Small tensors as well as large ones, in one bucket or in many: no digest finds a gap."""
    halted.settle()
    for name, shape in (("tiny", (4,)), ("wide", (64, 16))):
        halted.replayer.feed(name, torch.ones(shape), halted.digests.update, kept=kept)
    halted.replayer.finish()
    assert sorted(halted.digests) == list(range(0, len(halted.arena), 1024))
    assert all(halted.digests.values())


def test_what_was_held_back_is_forgotten_with_its_publish(halted: Halted) -> None:
    """Else it would be written in the next one, when its tensor is of an older step."""
    halted.go.set()
    halted.replayer.begin()
    halted.replayer.drain()
    offset = MIXED.layout.parameters[1].offset
    assert not any(halted.arena[offset : offset + 16])


def test_torch_starts_no_threads_beside_ours() -> None:
    """In each of them alone: the trainer's own threads keep their number, those to come as well."""
    before, found = torch.get_num_threads(), list[int]()
    threads = fill_threads(2)
    assert threads is not None
    torch.set_num_threads(3)
    try:
        threads.run([(None, lambda: found.append(torch.get_num_threads())) for _ in range(4)])
        threads.drain()
        other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert found == [1, 1, 1, 1, 3]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_one_thread_fills_where_torch_cannot_be_held_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Threads of ours times torch's own would be more than there are cores: it is said, and done without."""
    monkeypatch.setattr(sharing, "alone", lambda: False)
    sharing._kept_alone.cache_clear()
    try:
        assert fill_threads(4) is None
        assert "filled by one thread, not 4" in caplog.text
    finally:
        sharing._kept_alone.cache_clear()
    assert fill_threads(1) is None


@pytest.mark.parametrize(("count", "expected"), [(2, []), (3, [3, 3]), (4, [4, 4])])
def test_parts_of_a_large_tensor_are_copied_by_all_threads(
    count: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that must be copied before feed() returns, in a single bucket. Two threads gain nothing by it."""
    program = plain_program({"w": ("float32", (64,)), "v": ("float32", (64,))})
    parts = list[int]()
    made = SharedCopies._parts

    def counted(*arguments: object) -> list[object]:
        jobs = made(*arguments)  # type: ignore[arg-type]
        parts.append(len(jobs))
        return jobs  # type: ignore[return-value]

    monkeypatch.setattr(SharedCopies, "_parts", counted)
    buckets = cut([(0, program.layout.nbytes)], 1 << 20)
    arena = bytearray(program.layout.nbytes)
    replayer = Replayer(program, memoryview(arena), ["w", "v"], buckets, threads=fill_threads(count))
    replayer.feed("w", torch.ones(64))
    replayer.feed("v", torch.ones(64, dtype=torch.float64))
    replayer.finish()
    assert parts == expected
    assert arena[:256] == torch.ones(64).numpy().tobytes()
