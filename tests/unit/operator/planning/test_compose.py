"""When the term rises, when the generation does, and which plan stays."""

from dataclasses import replace

import pytest

from tests.build.pods import OTHER_LAYOUT, engine, gathered, judged, planned, source_rank, told, trainer
from weightsync.plan import Plan, Relay, Strategy, Transfer
from weightsync_operator.planning.compose import Wish, compose, left_out
from weightsync_operator.planning.pods import Pod

T0, T1 = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
E = engine()


def made(plan: Plan | None) -> Plan:
    assert plan is not None
    return plan


def pair(first: str = "1" * 16, second: str = "3" * 16) -> list[Pod]:
    return [
        trainer("a", source_rank(0, world=2, nonce=first), created=T0),
        trainer("b", source_rank(1, world=2, nonce=second), created=T1),
    ]


def plan(pods: list[Pod], previous: Plan | None = None, now: int = 0) -> Plan | None:
    return planned(pods, [E], previous, now=now)


def test_the_oldest_coordinates_and_stays() -> None:
    """An older pod that appears later does not take over: the coordinator is sticky."""
    first = made(plan([trainer("b", source_rank(1, world=2), created=T1)]))
    assert first.coordinator == "uid-b"
    second = made(plan(pair(second="1" * 16), first))
    assert (second.coordinator, second.term) == ("uid-b", first.term)
    assert made(plan(pair())).coordinator == "uid-a"


def test_another_coordinator_is_another_term() -> None:
    """When the coordinator's pod goes, the next oldest takes over under a higher term."""
    first = made(plan(pair()))
    second = made(plan([pair()[1]], first))
    assert (second.coordinator, second.term, second.generation) == ("uid-b", 2, 2)


def test_another_life_of_the_coordinator_is_another_term() -> None:
    """The nonce of its lowest rank tells: the same pod with a restarted trainer is fenced off."""
    first = made(plan(pair()))
    assert made(plan(pair(first="9" * 16), first)).term == 2


def test_a_weightsync_made_anew_begins_above_its_former_self() -> None:
    """Its agents remember the former terms: a lower one would be refused until their pods are new."""
    former = made(plan(pair(first="9" * 16), plan(pair(), now=5000), now=5001))
    assert made(plan(pair(), now=9000)).term > former.term


def test_terms_rise_though_the_clock_went_back() -> None:
    """Within one WeightSync the last term is known, whatever the clock says; a term that goes on is no new one."""
    first = made(plan(pair(), now=9000))
    assert first.term == 9000
    assert made(plan(pair(), first, now=9500)).term == 9000
    assert made(plan(pair(first="9" * 16), first, now=10)).term == 9001


def test_another_life_of_another_rank_is_none() -> None:
    """Only the generation rises."""
    first = made(plan(pair()))
    second = made(plan(pair(second="9" * 16), first))
    assert (second.term, second.generation) == (1, 2)


def test_the_lowest_rank_of_the_pod_tells_its_life() -> None:
    """A pod of several ranks is another coordinator when its lowest rank restarted, and not when another did."""

    def pod(first: str, second: str) -> list[Pod]:
        ranks = source_rank(0, world=2, nonce=first * 16), source_rank(1, world=2, nonce=second * 16)
        return [trainer("a", *ranks)]

    before = made(plan(pod("1", "2")))
    assert made(plan(pod("1", "9"), before)).term == 1
    assert made(plan(pod("9", "2"), before)).term == 2


def test_a_plan_whose_sources_were_lost_gets_a_new_term() -> None:
    """One term too many costs a rerun; one too few lets two lives share a fence."""
    first = made(plan(pair())).model_copy(update={"sources": (), "engines": ()})
    assert made(plan(pair(), first)).term == 2


def test_without_usable_sources_the_last_plan_stays() -> None:
    """Same numbers, same routes; and there is none where there never was one."""
    two = [trainer("a", source_rank(0, world=2, stages=2)), trainer("b", source_rank(1, world=2, stage=1, stages=2))]
    first = made(planned(two, [E]))
    assert planned(two[:1], [E], first) == first
    assert planned([], [E], first) == first
    assert planned(two[:1], [E]) is None


def test_engines_come_and_go_without_the_trainer() -> None:
    """Those that come read from those that the plan names: of a plan that stays as it is none may be left one day."""
    two = [trainer("a", source_rank(0, world=2, stages=2)), trainer("b", source_rank(1, world=2, stage=1, stages=2))]
    former = [engine("x"), engine("y")]
    first = made(planned(two, former))
    for away in (two[:1], [], [trainer("a"), trainer("b")]):  # one, all, two that contradict one another
        fresh = [engine("y"), *(engine(f"new-{number}") for number in range(3))]
        second = made(planned(away, fresh, first))
        assert [each.name for each in second.engines] == ["y", "new-0", "new-1", "new-2"]
        assert second.engines[0] is first.engines[1], "nothing of one that stays moves"
        assert (second.sources, second.coordinator, second.term) == (first.sources, first.coordinator, first.term)
        assert second.generation == first.generation + 1
        assert made(planned(away, fresh, second)).generation == second.generation
        back = made(planned(two, fresh, second))
        assert (back.term, back.engines) == (first.term, second.engines)


def test_who_fits_nowhere_is_named_without_the_trainer_too() -> None:
    """As with it: an engine that is in no plan and in no sentence would be a riddle."""
    source = told(trainer("a", source_rank(0)), room_bytes=10)
    small = told(engine("x"), replica_bytes=10)
    first = made(planned([source], [small]))
    other = told(engine("y", layout=OTHER_LAYOUT), replica_bytes=10, checkpoint="c" * 32)
    members = judged([told(small, checkpoint="c" * 32), other]).members
    second = made(compose(Wish(name="default/policy"), gathered([told(source, ready=False)]), members, first, 0))
    assert [each.name for each in second.engines] == ["x"]
    assert [each.engine for each in left_out(members, second)] == ["y"]


def test_a_plan_whose_sources_were_lost_stays() -> None:
    """Their slice was deleted while the trainer is away: nothing can be routed until it is back."""
    lost = made(plan(pair())).model_copy(update={"sources": ()})
    assert made(planned([], [E, engine("new")], lost)).engines == lost.engines


def test_the_spec_counts_as_content() -> None:
    """Another deadline raises the generation, under the same term."""
    first = made(plan(pair()))
    wish = Wish(name="default/policy", strategy=Strategy(deadline_seconds=5))
    second = made(planned(pair(), [E], first, wish))
    assert (second.term, second.generation, second.strategy.deadline_seconds) == (1, 2, 5)


def test_the_order_of_pods_is_no_content() -> None:
    """The same engines in another order are the same plan."""
    engines = [engine("x"), engine("y")]
    first = made(planned([trainer()], engines))
    assert made(planned([trainer()], engines[::-1], first)).generation == 1


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(engine(layout=OTHER_LAYOUT), id="what a rank holds"),
        pytest.param(engine(ranks=2), id="its number of ranks"),
        pytest.param(engine(incarnation="life-2"), id="its process"),
        pytest.param(told(engine(), address="elsewhere:8960"), id="its address"),
        pytest.param(replace(engine(), name="renamed"), id="its pod's name"),
    ],
)
def test_whatever_changed_of_an_engine_is_in_the_next_plan(changed: Pod) -> None:
    """What is taken over from the previous plan is what says the same in all."""
    first = made(planned([trainer()], [E]))
    second = made(planned([trainer()], [changed], first))
    assert second.engines == made(planned([trainer()], [changed])).engines
    assert second.generation == first.generation + 1
    same = made(planned([trainer()], [changed], second))
    assert same.engines[0] is second.engines[0]


def near(plan: Plan) -> list[tuple[str, ...]]:
    return [plan.sources[0].near, *(engine.near for engine in plan.engines)]


def test_where_pods_are_is_told_to_a_relay_alone() -> None:
    """The widest label first, nothing where none is known; without a relay a pod that moves changes no plan so."""
    pods = gathered([replace(trainer("a", source_rank(0)), node="n0")])
    members = judged([replace(engine(), node="n1"), replace(engine("rollout-b"), node="n2")]).members
    places = {"n0": ("n0", "z0"), "n1": ("n1", "z1"), "n2": ("", "")}
    relay = Wish(name="default/policy", transfer=Transfer(relay=Relay(fanout=2)))
    first = made(compose(relay, pods, members, None, 0, places=places))
    assert near(first) == [("z0", "n0"), ("z1", "n1"), ()]
    same = made(compose(relay, pods, members, first, 0, places=places))
    assert same.generation == first.generation
    moved = made(compose(relay, pods, members, first, 0, places=places | {"n1": ("n1", "z0")}))
    assert (near(moved)[1], moved.generation) == (("z0", "n1"), first.generation + 1)
    none = Wish(name="default/policy", transfer=Transfer(relay=Relay(fanout=0)))
    assert near(made(compose(none, pods, members, None, 0, places=places))) == [(), (), ()]
