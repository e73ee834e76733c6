"""The conversion benchmark's arithmetic, and small runs of its parts."""

import os

import pytest

from tools.bench import convert
from tools.bench.convert import Contiguous, pairs, publishes
from tools.bench.filling import Fills, bound, filling
from tools.bench.processor import processor_seconds
from weightsync_agent.transfer.settings import TransferSettings


async def test_pairs_swap_their_order_and_leave_out_the_first() -> None:
    """Each ratio is of neighbours; the first pair touches pages for the first time."""
    order: list[str] = []

    async def one() -> float:
        order.append("one")
        return 3.0

    async def other() -> float:
        order.append("other")
        return 2.0

    assert await pairs(one, other, 2) == [1.5, 1.5]
    assert order == ["one", "other", "other", "one", "one", "other"]


def test_all_three_ways_move_every_byte() -> None:
    """A copy that skipped bytes would be fast."""
    model = Contiguous(1)
    assert model.memcpy() > 0
    assert model.bytes == bytes([3]) * model.nbytes
    for way in (model.copies, model.digested):
        model.memcpy()
        assert way() > 0
        assert model.bytes == bytes([0xC0, 0x3F]) * (model.nbytes // 2), "1.5 in bfloat16"


def test_processor_seconds_count_this_process() -> None:
    """And rise while it works."""
    before = processor_seconds()
    total = 0
    while processor_seconds() < before + 0.03:
        total += sum(range(100_000))
    assert processor_seconds(os.getpid()) > before


@pytest.mark.parametrize(("cores", "bounds"), [(2, (None, 1.15)), (16, (1.15, None))])
async def test_a_small_publish_gives_all_lines(
    cores: int, bounds: tuple[float | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two real workers: with digests and without, what they cost at least, and each part alone. The bound is
    on elapsed time where cores are free for digests."""
    monkeypatch.setattr(convert, "usable_cores", lambda: cores)
    found = await publishes(8 << 20, 1, TransferSettings())
    names = [
        "digests on over off", "digests on over off, processor seconds",
        "digests on over off, processor seconds, at least", "pipelined over the longest part",
    ]  # fmt: skip
    assert [m.name for m in found] == names
    assert all(m.value > 0 for m in found)
    assert found[2].value > 1
    assert tuple(m.bound for m in found[:2]) == bounds


@pytest.mark.parametrize(("cores", "most"), [(2, None), (3, None), (4, 0.8), (7, 0.8), (8, 0.5), (64, 0.5)])
def test_threads_must_gain_only_where_there_are_cores(cores: int, most: float | None) -> None:
    """On two or three nothing can be asked of them."""
    assert bound(cores) == most


@pytest.mark.parametrize("kept", [True, False], ids=["state dict", "generator"])
@pytest.mark.parametrize("many", [True, False], ids=["threads", "one thread"])
def test_every_fill_moves_every_byte(many: bool, kept: bool) -> None:
    """One that left bytes out would be fast."""
    fills = Fills(1, 3)
    fills.clear()
    assert fills.seconds(many=many, kept=kept) > 0
    assert fills.bytes == bytes([0xC0, 0x3F]) * (fills.nbytes // 2), "1.5 in bfloat16"


def test_filling_tells_threads_and_cores() -> None:
    """A ratio without them says nothing."""
    found = filling(1, 1)
    assert [m.name.partition(",")[0] for m in found] == ["filling from a state dict", "filling from a generator"]
    assert all("threads over one" in m.name and "cores" in m.how and m.value > 0 for m in found)
