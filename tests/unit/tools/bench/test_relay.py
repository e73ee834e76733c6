"""The relay benchmark's arithmetic, and one small run of it."""

import os
from dataclasses import replace

import pytest

from tests.conftest import unavailable
from tools.bench.relay.figures import Found, Joins, measures
from tools.bench.relay.site import Links
from tools.bench.relay.trials import Extent, run

JOINS = Joins(one=2.4, sent=1, count=8, many=9.6, busy=2.6, sync=5.5, without_trainer=2.2)
FOUND = Found(
    nbytes=100, engines=8, rate=50, fanout=2, alone=[1.0, 2.0, 9.0], together=[4.0, 5.0, 6.0], sent=[210, 200, 900],
    stopped=[5.5], joins=JOINS,
)  # fmt: skip


def test_measures_are_ratios_of_medians() -> None:
    """Egress is in versions, times are in those of one engine alone, an undisturbed sync, and the link alone."""
    assert {measure.name: measure.value for measure in measures(FOUND)} == {
        "egress of the trainer's pod over the version": 2.1,
        "all engines over one alone": 2.5,
        "one engine alone": 2.0,
        "beside one that is stopped": 1.1,
        "one join over its link alone": 1.2,
        "trainer's egress for it, over the version": 0.01,
        "a join beside a sync over its link alone": 1.3,
        "a sync beside a join": 1.1,
        "a join without the trainer over its link alone": 1.1,
        "8 joins at once over one": 4.0,
    }


@pytest.mark.parametrize(
    ("fanout", "egress", "together"),
    [pytest.param(2, 2.05, 2.6, id="of two"), pytest.param(0, 8.2, 10.4, id="without relay")],
)
def test_bounds_follow_the_fanout(fanout: int, egress: float, together: float) -> None:
    """Of what the trainer sends, and of the time against one engine's."""
    bounds = {measure.name: measure.bound for measure in measures(replace(FOUND, fanout=fanout))}
    assert bounds["egress of the trainer's pod over the version"] == pytest.approx(egress)
    assert bounds["all engines over one alone"] == pytest.approx(together)


@pytest.mark.parametrize(
    ("slow", "name"),
    [
        pytest.param(replace(FOUND, stopped=[5.6]), "beside one that is stopped", id="others wait for a stopped one"),
        pytest.param(replace(FOUND, sent=[206]), "egress of the trainer's pod over the version", id="more is sent"),
        pytest.param(
            replace(FOUND, joins=replace(JOINS, sent=2)), "trainer's egress for it, over the version",
            id="a joiner reads from the trainer",
        ),
        pytest.param(replace(FOUND, joins=replace(JOINS, many=9.7)), "8 joins at once over one", id="joins in a row"),
    ],
)  # fmt: skip
def test_what_is_too_slow_or_too_much_breaks_its_bound(slow: Found, name: str) -> None:
    """By name."""
    assert name in [measure.name for measure in measures(slow) if not measure.holds]


@pytest.mark.mooncake
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_small_run_over_shaped_links() -> None:
    """Two engines, one fed by the other, 16 MiB, links of 20 MB/s: none is faster than its link, and one version goes
    out; one that is stopped and feeds nobody holds nobody."""
    if os.geteuid() != 0:
        unavailable("network namespaces need root")
    found = run(Links(16 << 20, 1 << 20, 20_000_000, fanout=1), Extent(engines=2, syncs=1, joins=False))
    assert min(*found.alone, *found.together) > found.nbytes / found.rate
    assert found.nbytes < found.sent[0] < 1.1 * found.nbytes
    assert max(found.stopped) > found.nbytes / found.rate
