"""The relay benchmark's arithmetic, and one small run of it."""

import os

import pytest

from tests.conftest import unavailable
from tools.bench.relay.figures import Found, measures
from tools.bench.relay.site import Links
from tools.bench.relay.trials import run


def test_measures_are_ratios_of_medians() -> None:
    """Egress is in versions, times are in those of one engine alone and of an undisturbed sync."""
    found = Found(100, 8, 50, alone=[1.0, 2.0, 9.0], together=[4.0, 5.0, 6.0], sent=[210, 200, 900], stopped=[5.5])
    values = {measure.name: measure.value for measure in measures(found)}
    assert values == {
        "egress of the trainer's pod over the version": 2.1,
        "all engines over one alone": 2.5,
        "one engine alone": 2.0,
        "beside one that is stopped": 1.1,
    }


def test_those_beside_a_stopped_one_may_be_a_tenth_slower() -> None:
    """More is a broken bound."""
    slow = Found(100, 8, 50, alone=[1.0], together=[5.0], sent=[200], stopped=[5.6])
    assert [measure.name for measure in measures(slow) if not measure.holds] == ["beside one that is stopped"]


@pytest.mark.mooncake
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_small_run_over_shaped_links() -> None:
    """Two engines, 16 MiB, links of 20 MB/s: no version is faster than the link, and the counters see every byte."""
    if os.geteuid() != 0:
        unavailable("network namespaces need root")
    found = run(Links(16 << 20, 1 << 20, 20_000_000), 2, 1)
    assert min(*found.alone, *found.together) > found.nbytes / found.rate
    assert 2 * found.nbytes < found.sent[0] < 2.1 * found.nbytes
    assert max(found.stopped) > found.nbytes / found.rate
