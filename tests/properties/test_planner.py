"""What holds of every plan, whatever the cluster."""

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from tests.build.pods import engine, gathered, judged, planned, source_rank, told, trainer
from tests.properties.strategies import Cluster, Fleet, clusters, fleets, stamp
from weightsync.plan import Plan
from weightsync_operator.planning.compose import Wish, compose, left_out, same_content
from weightsync_operator.planning.grouping import group
from weightsync_operator.planning.membership import judge
from weightsync_operator.planning.memo import Memo, previous_routes
from weightsync_operator.planning.slicing import Slice, cut

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


def fewest_moves(held: Counter[tuple[str, int]], ranks: int, total: int) -> int:
    """How many targets must leave their sources so that ``total`` are spread evenly over so many ranks."""
    share, extra = divmod(total, ranks)
    loads = sorted(held.values(), reverse=True)
    return sum(max(0, load - share - (position < extra)) for position, load in enumerate(loads))


@given(clusters(max_engines=20), st.data())
def test_engines_that_leave_move_only_what_evenness_asks_for(cluster: Cluster, data: st.DataObject) -> None:
    """Whichever engines go, no fewer routes could move."""
    before = plan_of(cluster)
    gone = data.draw(st.sets(st.integers(0, max(0, len(cluster.engines) - 1))))
    left = tuple(pod for index, pod in enumerate(cluster.engines) if index not in gone)
    after = plan_of(Cluster(cluster.trainers, left, cluster.stages), before)
    old, new = previous_routes(before), previous_routes(after)
    for stage, of_stage in loads(after).items():
        kept = Counter((old[stage][key].uid, old[stage][key].rank) for key in new.get(stage, {}))
        moved = sum(old[stage][key] != source for key, source in new.get(stage, {}).items())
        assert moved == fewest_moves(kept, len(of_stage), sum(of_stage.values()))


@given(clusters(), st.data())
def test_a_trainer_pod_that_goes_moves_only_what_it_fed(cluster: Cluster, data: st.DataObject) -> None:
    """Where each stage keeps a rank, targets of other sources stay, and loads are even again."""
    before = plan_of(cluster)
    gone = data.draw(st.sampled_from(cluster.trainers))
    smaller = Cluster(tuple(pod for pod in cluster.trainers if pod != gone), cluster.engines, cluster.stages)
    after = planned(smaller.trainers, smaller.engines, before)
    assert after is not None
    if {rank.stage for source in after.sources for rank in source.ranks} != set(range(cluster.stages)) or (
        gone.uid in {source.uid for source in after.sources}
    ):
        return  # the last plan stays
    assert_even_and_whole(after, smaller)
    old = previous_routes(before)
    for stage, routes in previous_routes(after).items():
        assert all(routes[key] == source for key, source in old[stage].items() if source.uid != gone.uid)


@given(clusters(max_engines=20), st.integers(1, 4), st.integers(0, 12))
def test_no_trainer_pod_holds_more_than_it_has_room_for(cluster: Cluster, nbytes: int, room: int) -> None:
    """Replicas of a pod's ranks fit in its room; an engine that is left out fits nowhere; the rest is whole."""
    trainers = [told(pod, room_bytes=room * nbytes) for pod in cluster.trainers]
    engines = [told(pod, replica_bytes=nbytes * cluster.stages) for pod in cluster.engines]
    plan = planned(trainers, engines)
    assert plan is not None
    held: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for made in plan.engines:
        for target in made.targets:
            assert [step.stage for step in target.routes] == list(range(cluster.stages))
            for step in target.routes:
                held[step.source].add((step.rank, target.rank.program))
    again = planned(trainers, engines, plan)
    assert again is not None
    assert {made.leader for made in again.engines} >= {made.leader for made in plan.engines}, "what fits stays"
    settled = planned(trainers, engines, again)
    assert settled is not None
    assert same_content(settled, again), "and moves once at most, to be even"
    if room:
        assert all(len(replicas) <= room for replicas in held.values())
    else:
        assert len(plan.engines) == len(engines), "room that is not known binds nobody"
    ranks = len(engines[0].announcement.targets) if engines and engines[0].announcement else 0
    if room >= ranks * cluster.stages:
        assert len(plan.engines) == len(engines), "one pod alone has room for every program"
    assert len(plan.engines) + len(left_out(judged(engines).members, plan)) == len(engines)


@given(fleets(), st.data())
def test_engines_of_several_pods_are_whole_or_not_there(fleet: Fleet, data: st.DataObject) -> None:
    """Whichever pods are missing, exactly the engines that have all of theirs are planned, each rank fed once."""
    missing = data.draw(st.sets(st.sampled_from([pod.uid for pod in fleet.pods]))) if fleet.pods else set()
    there = [pod for pod in fleet.pods if pod.uid not in missing]
    plan = planned(fleet.trainers, there)
    assert plan is not None
    whole = {name for name, pods in fleet.engines.items() if not missing & pods}
    assert {made.name for made in plan.engines} == whole
    for made in plan.engines:
        assert [target.rank.rank for target in made.targets] == list(range(fleet.ranks))
        assert made.leader == made.targets[0].uid
        assert all([step.stage for step in target.routes] == [0] for target in made.targets)


@given(st.lists(st.sets(st.integers(0, 11)), min_size=2, max_size=6))
def test_what_is_remembered_changes_no_plan(states: list[set[int]]) -> None:
    """Over any coming and going of engines, plans and slices are what they would be without a memory."""
    sources = gathered([trainer(f"trainer-{i}", source_rank(i, world=3), created=stamp(i)) for i in range(3)])
    pods = [engine(f"rollout-{i}", ranks=2, created=stamp(i)) for i in range(12)]
    memo, wish, plain, quick = Memo(), Wish(name="a/b"), None, None
    plain_slices: tuple[Slice, ...] = ()
    quick_slices: tuple[Slice, ...] = ()
    for state in states:
        there = group([pods[index] for index in sorted(state)])
        plain = compose(wish, sources, judge(there).members, plain, 0)
        quick = compose(wish, sources, judge(there, memo).members, quick, 0, memo=memo)
        assert plain == quick
        assert plain is not None
        assert quick is not None
        fresh = plain.model_copy(deep=True)
        plain_slices, quick_slices = cut(fresh, OWNER, plain_slices), cut(quick, OWNER, quick_slices)
        assert plain_slices == quick_slices


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
