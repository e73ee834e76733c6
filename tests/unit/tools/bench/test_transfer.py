"""The transfer benchmark's arithmetic, and one small run of it."""

import pytest

from tools.bench.transfer import BOUND, measures, pairs, run
from weightsync_agent.transfer.settings import TransferSettings


def test_ratio_is_the_median_of_the_pairs() -> None:
    """Each pair gives one ratio, so that a slow minute of the machine, which hits both sides, does not count."""
    found = measures([(1.0, 1.25), (10.0, 10.0), (2.0, 4.0)], 10**9, 1, "a test")
    ratio, ours, raw, regions = found
    assert (ratio.name, ratio.value, ratio.bound, ratio.better) == ("raw over ours", 0.8, BOUND, "higher")
    assert (ours.value, raw.value) == (0.25, 0.5)
    assert (regions.value, regions.bound, regions.better) == (1, 1, "lower")
    assert all(measure.holds for measure in found)


def test_slow_side_breaks_the_bound() -> None:
    """Less than three quarters of raw Mooncake's speed is a broken bound."""
    assert not measures([(0.74, 1.0)], 10**9, 1, "a test")[0].holds


async def test_pairs_are_interleaved_and_the_first_is_not_counted() -> None:
    """Raw and ours alternate in both orders; the warm-up pair is dropped."""
    order: list[str] = []
    found = await pairs(Side("raw", 1.0, order), Side("ours", 2.0, order), 3)
    assert found == [(1.0, 2.0)] * 3
    assert order == ["ours", "raw", "raw", "ours", "ours", "raw", "raw", "ours"]


class Side:
    """A publish that takes no time and notes its turn."""

    def __init__(self, name: str, seconds: float, order: list[str]) -> None:
        self._name, self._seconds, self._order = name, seconds, order

    async def __call__(self) -> float:
        self._order.append(self._name)
        return self._seconds


@pytest.mark.mooncake
async def test_small_run_measures_both_sides() -> None:
    """16 MiB, one pair, real Mooncake on both sides: four measures, one region per arena."""
    found = await run(16 << 20, 1, TransferSettings(), agents=False)
    assert [measure.unit for measure in found] == ["1", "GB/s", "GB/s", "1"]
    assert found[3].value == 1
    assert all(measure.value > 0 for measure in found)
