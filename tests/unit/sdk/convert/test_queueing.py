"""Tensors of a device are copied beside the trainer: nothing is told early, let go early or held without bound."""

import logging
import weakref

import pytest
import torch

from tests.build.lanes import FakeLane
from weightsync.buckets import PAGE, cut
from weightsync.convert import lanes
from weightsync.convert.lanes import Lanes, pages
from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.convert.replay import Replayer
from weightsync.errors import InputError
from weightsync.layout import lay_out
from weightsync.testing import plain_program

ROW = 256  # bytes of each tensor, and of a bucket: a tensor is a bucket


class Filling:
    """A replayer over tensors of one bucket each, on one fake lane."""

    def __init__(self, count: int = 6, lane: FakeLane | None = None) -> None:
        self.lane = lane or FakeLane()
        self.program = plain_program({f"t{i}": ("uint8", (ROW,)) for i in range(count)})
        self.arena = bytearray(self.program.layout.nbytes)
        buckets = cut([(0, len(self.arena))], ROW)
        names = [tensor.name for tensor in self.program.tensors]
        self.replayer = Replayer(self.program, memoryview(self.arena), names, buckets, lambda device: self.lane)
        self.told: list[int] = []

    def feed(self, number: int) -> torch.Tensor:
        tensor = torch.full((ROW,), number + 1, dtype=torch.uint8)
        self.replayer.feed(f"t{number}", tensor, lambda full: self.told.extend(offset for offset, _ in full))
        return tensor


def test_a_bucket_is_told_when_its_event_is_done() -> None:
    """Not when the copy is queued; and at the next look, without a wait."""
    filling = Filling()
    filling.feed(0)
    assert (filling.told, filling.replayer.copied) == ([], 0)
    filling.lane.advance(1)
    filling.feed(1)
    assert (filling.told, filling.replayer.copied, filling.lane.waits) == ([0], ROW, 0)


def test_a_tensor_lives_until_its_copy_is_done() -> None:
    """The caller may drop it at once, and its memory is not given to another tensor before."""
    filling = Filling()
    alive = weakref.ref(filling.feed(0).untyped_storage())
    assert alive() is not None
    filling.lane.advance(1)
    filling.feed(1)
    assert alive() is None


def test_no_more_than_two_buckets_of_tensors_are_held() -> None:
    """The third waits for the first, and for no more than that."""
    filling = Filling()
    tensors = [weakref.ref(filling.feed(i).untyped_storage()) for i in range(4)]
    assert [alive() is not None for alive in tensors] == [False, False, True, True]
    assert (filling.told, filling.lane.done) == ([0, ROW], 2)


def test_the_last_buckets_are_told_while_the_end_is_waited_for() -> None:
    """finish() returns when every byte is in the arena, and each bucket was told by then."""
    filling = Filling(count=2)
    for number in range(2):
        filling.feed(number)
    filling.replayer.finish()
    assert filling.told == [0, ROW]
    assert bytes(filling.arena) == bytes([1] * ROW + [2] * ROW)


def test_a_failed_publish_leaves_nothing_in_flight_and_tells_nothing_more() -> None:
    """What the next publish writes is not overwritten by what the failed one had queued."""
    filling = Filling(count=2)
    filling.feed(0)
    filling.replayer.abandon()
    assert (filling.lane.done, filling.told) == (1, [])
    filling.replayer.begin()
    for number in (1, 0):
        filling.feed(number)
    filling.replayer.finish()
    assert filling.told == [ROW, 0]


def test_what_torch_cannot_queue_is_an_error_with_the_tensors_name() -> None:
    """And what it had queued before has run when the error is raised."""
    filling = Filling(lane=FakeLane(fails_at=1))
    filling.feed(0)
    with pytest.raises(InputError, match="tensor t1 cannot be copied: CUDA error: out of memory"):
        filling.feed(1)
    assert filling.lane.done == 1


def test_the_trainers_stream_waits_before_it_goes_on() -> None:
    """Once a tensor: a generator may gather the next one into the same memory."""
    filling = Filling()
    filling.feed(0)
    filling.feed(1)
    assert filling.lane.held_back == 2


def test_a_portion_that_is_copied_at_once_does_not_overtake_those_before_it() -> None:
    """Rows with gaps in the arena are copied at once; the bucket that they complete still waits for the lane."""
    layout = lay_out([("p", "uint8", (4, 8))])
    dense = Piece(box=((0, 2), (0, 8)), offset=0, strides=(8, 1), dtype="uint8")
    gappy = Piece(box=((2, 4), (0, 4)), offset=16, strides=(8, 1), dtype="uint8")
    tensor = TensorCopies(name="a", dtype="uint8", shape=(5, 8), pieces=(dense, gappy))
    program = CopyProgram(layout=layout, tensors=(tensor,))
    lane, told = FakeLane(), list[int]()
    arena = bytearray(layout.nbytes)
    replayer = Replayer(program, memoryview(arena), ["a"], cut([(0, 32)], 4096), lambda device: lane)
    replayer.feed("a", torch.arange(40, dtype=torch.uint8).view(5, 8), lambda full: told.extend(o for o, _ in full))
    assert arena[16:20] == bytes([16, 17, 18, 19]), "rows with gaps are copied at once"
    assert not told
    assert arena[:4] == bytes(4)
    replayer.finish()
    assert told == [0]
    assert arena[:4] == bytes([0, 1, 2, 3])


@pytest.mark.parametrize(
    ("extents", "expected"),
    [
        pytest.param([(0, PAGE)], [(0, PAGE)], id="a page"),
        pytest.param([(1, 2)], [(0, PAGE)], id="a part of one"),
        pytest.param([(0, 10), (20, 30)], [(0, PAGE)], id="two parts of the same page are registered once"),
        pytest.param(
            [(0, PAGE), (PAGE, 2 * PAGE)], [(0, 2 * PAGE)], id="neighbours are one range: copies cross them"
        ),
        pytest.param(
            [(3 * PAGE, 3 * PAGE + 1), (0, 1)], [(0, PAGE), (3 * PAGE, 4 * PAGE)], id="a gap stays unpinned"
        ),
    ],
)
def test_whole_pages_are_pinned_once(extents: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    """CUDA refuses to register a page twice, and a copy that crosses two registrations."""
    assert pages(extents) == expected


class Runtime:
    """CUDA's runtime as far as pins need it; refuses the registration of that number."""

    def __init__(self, refuse: int) -> None:
        self.refuse, self.calls, self.pinned = refuse, 0, set[int]()

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        self.calls += 1
        if self.calls == self.refuse:
            return 2
        self.pinned.add(address)
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        self.pinned.remove(address)
        return 0


def test_an_arena_that_cannot_be_pinned_is_said_once_and_copied_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No lane, one warning with what to do, and nothing stays pinned of what was."""
    runtime = Runtime(refuse=2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(lanes, "_forget_cuda_error", lambda: None)
    opened = Lanes(torch.zeros(4 * PAGE, dtype=torch.uint8), [(0, 1), (2 * PAGE, 3 * PAGE)])
    with caplog.at_level(logging.WARNING):
        assert [opened(torch.device("cuda", 0)), opened(torch.device("cuda", 1))] == [None, None]
    assert len(caplog.records) == 1
    assert "cannot be pinned (CUDA error 2" in caplog.text
    assert (runtime.pinned, runtime.calls) == (set(), 2)


def test_a_first_publish_pins_nothing() -> None:
    """Nobody knows yet which pages are this stage's: pinning all would allocate those of the other stages."""
    assert Lanes(torch.zeros(PAGE, dtype=torch.uint8), [])(torch.device("cuda", 0)) is None
