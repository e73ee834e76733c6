"""What holds of every plan, whatever the cluster."""

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from tests.build.pods import engine, planned
from tests.properties.strategies import Cluster, clusters, stamp
from weightsync.plan import Plan
from weightsync_operator.planning.compose import previous_routes, same_content
from weightsync_operator.planning.slicing import cut

OWNER = ("policy", "uid-policy")


def plan_of(cluster: Cluster, previous: Plan | None = None) -> Plan:
    made = planned(cluster.trainers, cluster.engines, previous)
    assert made is not None
    return made


def loads(plan: Plan) -> dict[int, Counter[tuple[str, int]]]:
    """Stage -> source rank -> number of targets, ranks that feed nobody included."""
    found: dict[int, Counter[tuple[str, int]]] = defaultdict(Counter)
    for source in plan.sources:
        for rank in source.ranks:
            found[rank.stage][source.uid, rank.rank] = 0
    for stage, routes in previous_routes(plan).items():
        found[stage].update((source.uid, source.rank) for source in routes.values())
    return found


def assert_even_and_whole(plan: Plan, cluster: Cluster) -> None:
    stage_of = {(s.uid, r.rank): r.stage for s in plan.sources for r in s.ranks}
    assert len(plan.engines) == len(cluster.engines)
    for made in plan.engines:
        for target in made.targets:
            assert [route.stage for route in target.routes] == list(range(cluster.stages))
            assert all(stage_of[route.source, route.rank] == route.stage for route in target.routes)
    for stage in loads(plan).values():
        assert max(stage.values()) - min(stage.values()) <= 1


@given(clusters())
def test_each_rank_is_fed_once_by_every_stage_and_evenly(cluster: Cluster) -> None:
    """Every engine rank has exactly one route for each stage, from a rank of that stage; loads are even."""
    assert_even_and_whole(plan_of(cluster), cluster)


@given(clusters(), st.integers(1, 4))
def test_engines_that_join_move_no_other_route(cluster: Cluster, more: int) -> None:
    """After a scale-up the routes of those that were there are what they were, and loads are even again."""
    before = plan_of(cluster)
    ranks = len(before.engines[0].targets) if before.engines else 1
    joined = [engine(f"joiner-{i}", ranks=ranks, created=stamp(100 + i)) for i in range(more)]
    larger = Cluster(cluster.trainers, (*cluster.engines, *joined), cluster.stages)
    after = plan_of(larger, before)
    old, new = previous_routes(before), previous_routes(after)
    assert all(new[stage][key] == source for stage, routes in old.items() for key, source in routes.items())
    assert_even_and_whole(after, larger)


@given(clusters(), st.data())
def test_one_engine_that_leaves_moves_few_routes(cluster: Cluster, data: st.DataObject) -> None:
    """Per stage at most as many routes move as the engine had ranks, and loads are even again."""
    if not cluster.engines:
        return
    gone = data.draw(st.sampled_from(cluster.engines))
    before = plan_of(cluster)
    smaller = Cluster(cluster.trainers, tuple(e for e in cluster.engines if e != gone), cluster.stages)
    after = plan_of(smaller, before)
    assert_even_and_whole(after, smaller)
    ranks = len(before.engines[0].targets)
    old = previous_routes(before)
    for stage, routes in previous_routes(after).items():
        assert sum(old[stage][key] != source for key, source in routes.items()) <= ranks


@given(clusters())
def test_planning_again_changes_nothing(cluster: Cluster) -> None:
    """The same pods give the same plan, with the same numbers, also after a round trip through slices."""
    before = plan_of(cluster)
    slices = cut(before, OWNER, ())
    reread = before.model_copy(
        update={
            "sources": tuple(s for part in slices for s in part.spec.sources),
            "engines": tuple(e for part in slices for e in part.spec.engines),
        }
    )
    after = plan_of(cluster, reread)
    assert same_content(before, after)
    assert (after.term, after.generation) == (before.term, before.generation)
    assert [part.name for part in cut(after, OWNER, slices)] == [part.name for part in slices]


@given(clusters(max_engines=40), clusters(max_engines=40))
def test_slices_hold_each_engine_once(first: Cluster, second: Cluster) -> None:
    """Whatever the plan was before, the slices of the next hold each of its sources and engines exactly once."""
    past = cut(plan_of(first), OWNER, ())
    plan = plan_of(second)
    slices = cut(plan, OWNER, past)
    assert Counter(e.leader for part in slices for e in part.spec.engines) == Counter(e.leader for e in plan.engines)
    assert Counter(s.uid for part in slices for s in part.spec.sources) == Counter(s.uid for s in plan.sources)
