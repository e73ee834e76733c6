"""The mapping's tie-breaks, one against the next."""

from collections.abc import Mapping

import pytest

from weightsync_operator.planning.mapping import Place, Routes, SourceKey, TargetKey, Wanted, map_stages


def s(number: int) -> SourceKey:
    return SourceKey(f"s{number}", number)


def targets(engines: int, ranks: int = 1) -> list[Wanted]:
    return [Wanted(TargetKey(f"e{e}", r), f"program {r}") for e in range(engines) for r in range(ranks)]


def one_stage(
    sources: list[SourceKey],
    wanted: list[Wanted],
    previous: Routes,
    places: Mapping[str, Place] | None = None,
    room: Mapping[str, int] | None = None,
) -> Routes:
    """The routes of a plan of one stage."""
    return map_stages([sources], wanted, {0: previous}, places, room)[0]


def loads(routes: dict[TargetKey, SourceKey]) -> list[int]:
    found = [source.rank for source in routes.values()]
    return [found.count(number) for number in sorted(set(found))]


@pytest.mark.parametrize(
    ("sources", "engines", "ranks", "expected"),
    [
        pytest.param(1, 3, 1, [0, 0, 0], id="one source takes all"),
        pytest.param(2, 2, 1, [0, 1], id="source i takes target i"),
        pytest.param(3, 2, 1, [0, 1], id="a source may have nothing to send"),
        pytest.param(2, 4, 1, [0, 1, 0, 1], id="among equals the one with least to send, then the first"),
        pytest.param(2, 2, 2, [0, 1, 0, 1], id="a rank goes to the source that serves it already"),
        pytest.param(2, 2, 3, [0, 1, 0, 0, 1, 1], id="but nobody carries more than its share"),
        pytest.param(4, 2, 2, [0, 1, 2, 3], id="idle sources come before those that serve the rank"),
    ],
)
def test_new_mapping(sources: int, engines: int, ranks: int, expected: list[int]) -> None:
    """From nothing, targets in their order get these sources."""
    wanted = targets(engines, ranks)
    routes = one_stage([s(i) for i in range(sources)], wanted, {})
    assert [routes[w.key].rank for w in wanted] == expected


def test_a_new_engine_moves_nobody() -> None:
    """Routes of the engines that were there stay, even where a fresh mapping would look otherwise."""
    sources = [s(0), s(1)]
    before = {TargetKey("e0", 0): s(1), TargetKey("e1", 0): s(0), TargetKey("e2", 0): s(0)}
    after = one_stage(sources, targets(4), before)
    assert {key: after[key] for key in before} == before
    assert after[TargetKey("e3", 0)] == s(1)


def test_a_lost_source_moves_its_targets_only() -> None:
    """The targets of a source that is gone are shared out; others stay."""
    wanted = targets(6)
    before = one_stage([s(0), s(1), s(2)], wanted, {})
    after = one_stage([s(0), s(2)], wanted, before)
    assert all(after[key] == source for key, source in before.items() if source != s(1))
    assert loads(after) == [3, 3]


def test_uneven_scale_down_moves_the_fewest() -> None:
    """Where the engines of one source go, only as many targets move as evenness needs, the youngest first."""
    before = one_stage([s(0), s(1)], targets(6), {})
    left = [w for w in targets(6) if w.key.uid in {"e0", "e2", "e4", "e5"}]  # three of s0, one of s1
    after = one_stage([s(0), s(1)], left, before)
    assert [w.key.uid for w in left if after[w.key] != before[w.key]] == ["e4"]
    assert loads(after) == [2, 2]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        pytest.param(("n1", "z1"), 1, id="the same node"),
        pytest.param(("n9", "z2"), 2, id="the same zone"),
        pytest.param(("n9", "z9"), 0, id="far from all: the first"),
        pytest.param(("", ""), 0, id="a node without labels: the first"),
        pytest.param((), 0, id="not known"),
    ],
)
def test_among_equals_the_nearest(place: tuple[str, ...], expected: int) -> None:
    """Where idle sources, or equally loaded ones, are left, the first label that two nodes share decides."""
    places = {"s0": ("n0", "z0"), "s1": ("n1", "z1"), "s2": ("n2", "z2")}
    sources = [s(0), s(1), s(2)]
    first = [Wanted(TargetKey("e0", 0), "p", place)]
    assert one_stage(sources, first, {}, places)[first[0].key] == s(expected)
    busy = [Wanted(TargetKey(f"b{n}", 0), "p") for n in range(3)]
    later = one_stage(sources, busy + first, {target.key: s(n) for n, target in enumerate(busy)}, places)
    assert later[first[0].key] == s(expected)


def test_evenness_comes_before_nearness() -> None:
    """Targets near one source are spread over all."""
    near = [Wanted(TargetKey(f"e{n}", 0), "p", ("n0",)) for n in range(4)]
    routes = one_stage([s(0), s(1)], near, {}, {"s0": ("n0",), "s1": ("n1",)})
    assert loads(routes) == [2, 2]


def test_what_is_fed_stays_though_another_is_nearer() -> None:
    """A source that appears nearer takes nobody over."""
    target = Wanted(TargetKey("e0", 0), "p", ("n1",))
    routes = one_stage([s(0), s(1)], [target], {target.key: s(0)}, {"s0": ("n0",), "s1": ("n1",)})
    assert routes == {target.key: s(0)}


def test_a_bound_of_memory_comes_before_evenness() -> None:
    """A pod with room for one program gets no second; what fits nowhere has no route, and harms nobody."""
    wanted = [Wanted(TargetKey(f"e{n}", 0), f"p{n % 3}", (), 10) for n in range(6)]
    routes = one_stage([s(0), s(1)], wanted, {}, {}, {"s0": 10, "s1": 10})
    served = {(routes[w.key].uid, w.program) for w in wanted if w.key in routes}
    assert served == {("s0", "p0"), ("s1", "p1")}
    assert [w.key.uid for w in wanted if w.key not in routes] == ["e2", "e5"]
    assert len(one_stage([s(0), s(1)], wanted, {}, {}, {"s0": 10})) == 6


def test_ranks_of_one_pod_share_its_room() -> None:
    """Room is the pod's, over its ranks and over stages."""
    wanted = [Wanted(TargetKey("e0", 0), "p", (), 10)]
    first, second = map_stages([[SourceKey("s", 0)], [SourceKey("s", 1)]], wanted, {}, {}, {"s": 15})
    assert first
    assert not second


def test_a_first_replica_in_each_stage_comes_before_a_second_in_one() -> None:
    """Four ranks of one pod, two a stage, and room for two replicas: spread over the first stage's ranks no engine
    would have a second stage. With more room they are spread."""
    wanted = [Wanted(TargetKey(f"e{n}", 0), "p", (), 10) for n in range(2)]
    stages = [[SourceKey("s", 0), SourceKey("s", 2)], [SourceKey("s", 1), SourceKey("s", 3)]]
    routes = map_stages(stages, wanted, {}, {}, {"s": 20})
    assert [loads(of_stage) for of_stage in routes] == [[2], [2]]
    assert map_stages(stages, wanted, dict(enumerate(routes)), {}, {"s": 20}) == routes
    assert [loads(of_stage) for of_stage in map_stages(stages, wanted, {}, {}, {"s": 40})] == [[1, 1], [1, 1]]


def test_a_stage_without_sources_is_refused() -> None:
    """Nothing is mapped to nobody."""
    with pytest.raises(ValueError, match="without sources"):
        one_stage([], targets(1), {})
