"""What holds of every relay tree, whatever the engines, their zones, and who comes and goes."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from weightsync_agent.protocol.relay_change import follow
from weightsync_agent.protocol.relay_tree import Place, children, crossings, depth, mended, parents, tree

EXAMPLES = 40
ZONES = ("east", "north", "west")


@dataclass(frozen=True)
class Fleet:
    """Engines of one program, and where their sources are."""

    places: tuple[Place, ...]
    fanout: int
    sources: tuple[tuple[str, ...], ...]

    @property
    def zones(self) -> set[str]:
        """Of the sources."""
        return {near[0] for near in self.sources if near}


@st.composite
def fleets(draw: st.DrawFn, max_engines: int = 20) -> Fleet:
    """Zones and racks, or none; more engines than the fanout."""
    fanout = draw(st.integers(1, 4))
    zones = draw(st.integers(0, len(ZONES)))
    near = st.tuples(st.sampled_from(ZONES[:zones]), st.sampled_from("ab")) if zones else st.just(())
    nears = draw(st.lists(near, min_size=fanout + 1, max_size=max_engines))
    places = tuple(Place(f"engine-{i:02d}", each) for i, each in enumerate(nears))
    return Fleet(places, fanout, tuple(draw(st.lists(st.one_of(near, st.just(())), max_size=3))))


def flattest(count: int, fanout: int) -> int:
    """Levels of a full tree of so many engines."""
    levels = 0
    while count > 0:
        levels += 1
        count -= fanout**levels
    return levels


def assert_tree(made: dict[str, str | None], places: tuple[Place, ...], fanout: int) -> None:
    """Each engine once, nobody in a circle, nobody with too many below."""
    assert set(made) == {place.key for place in places}
    degrees = Counter(made.values())
    assert max(degrees.values()) <= fanout
    reached: set[str | None] = set()
    level: list[str | None] = [None]
    while level:
        reached |= set(level)
        level = [key for key, parent in made.items() if parent in level]
        assert not reached & set(level)
    assert reached == {None, *made}


@settings(max_examples=EXAMPLES)
@given(fleets(), st.randoms(use_true_random=False))
def test_every_engine_is_fed_once_within_the_fanout_whatever_the_order(fleet: Fleet, random: object) -> None:
    """A tree of all engines, at most ``fanout`` below each and below the sources; the order of targets is nothing."""
    made = tree(fleet.places, fleet.fanout, sources=fleet.sources)
    assert_tree(made, fleet.places, fleet.fanout)
    shuffled = list(fleet.places)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert tree(shuffled, fleet.fanout, sources=fleet.sources) == made


@settings(max_examples=EXAMPLES)
@given(fleets())
def test_a_zone_is_entered_once(fleet: Fleet) -> None:
    """One crossing for each zone without a source; roots are near where the sources are unknown."""
    made = tree(fleet.places, fleet.fanout, sources=fleet.sources)
    zone = {place.key: place.zone for place in fleet.places}
    zones = set(zone.values())
    found = crossings(made, zone, fleet.zones)
    if fleet.zones:
        begun = {zone[key] for key, parent in made.items() if parent is None} & fleet.zones
        assert found == len(zones - begun)
        assert len(begun) == min(len(zones & fleet.zones), fleet.fanout) or found < len(zones)
    else:
        roots = {zone[key] for key, parent in made.items() if parent is None}
        assert found == len(zones - roots)


@settings(max_examples=EXAMPLES)
@given(fleets())
def test_a_tree_is_as_flat_as_its_zones_allow(fleet: Fleet) -> None:
    """Without zones no tree of the fanout is flatter; with them it is at most as deep as zones in a row."""
    made = tree(fleet.places, fleet.fanout, sources=fleet.sources)
    sizes = Counter(place.zone for place in fleet.places)
    if len(sizes) == 1 and (not fleet.zones or set(sizes) <= fleet.zones):
        assert depth(made) == flattest(len(fleet.places), fleet.fanout)
    heads = flattest(len(sizes), fleet.fanout)
    assert depth(made) <= heads + max(flattest(size, fleet.fanout) for size in sizes.values()) + (
        sum(sizes.values()) if fleet.fanout == 1 else 0
    )


@settings(max_examples=EXAMPLES)
@given(fleets(), st.data())
def test_suspects_feed_nobody_while_others_can(fleet: Fleet, data: st.DataObject) -> None:
    """With few suspects all of them are leaves; with many the tree still is one."""
    suspects = data.draw(st.sets(st.sampled_from([place.key for place in fleet.places])))
    made = tree(fleet.places, fleet.fanout, sources=fleet.sources, suspects=suspects)
    assert_tree(made, fleet.places, fleet.fanout)
    healthy = len(fleet.places) - len(suspects)
    if len(suspects) <= fleet.fanout + healthy * (fleet.fanout - 1):
        assert not suspects & {parent for parent in made.values() if parent}


@settings(max_examples=EXAMPLES)
@given(fleets(), st.data())
def test_one_engine_that_comes_or_goes_moves_few(fleet: Fleet, data: st.DataObject) -> None:
    """Without zones: one that comes moves nobody; one that goes moves its children and who takes its place."""
    before = tree(fleet.places, fleet.fanout, sources=fleet.sources)
    lost = data.draw(st.sampled_from(fleet.places))
    fewer = tuple(place for place in fleet.places if place != lost)
    after = tree(fewer, fleet.fanout, sources=fleet.sources, previous=before)
    more = (*fleet.places, Place("engine-99", lost.near))
    grown = tree(more, fleet.fanout, sources=fleet.sources, previous=before)
    assert_tree(after, fewer, fleet.fanout)
    assert_tree(grown, more, fleet.fanout)
    for made, places in ((after, fewer), (grown, more)):
        fresh = tree(places, fleet.fanout, sources=fleet.sources)
        zone = {place.key: place.zone for place in places}
        assert depth(made) <= depth(fresh)
        assert crossings(made, zone, fleet.zones) <= crossings(fresh, zone, fleet.zones)
    if len({place.zone for place in fleet.places}) == 1 and not fleet.zones and len(fewer) > fleet.fanout:
        assert sum(before[key] != parent for key, parent in after.items()) <= fleet.fanout + 1
        assert all(grown[key] == parent for key, parent in before.items())


@settings(max_examples=EXAMPLES)
@given(fleets(), st.data())
def test_an_engine_that_is_replaced_leaves_its_place_to_the_new_one(fleet: Fleet, data: st.DataObject) -> None:
    """Without zones: only the replaced one's children have another parent than before."""
    before = tree(fleet.places, fleet.fanout)
    lost = data.draw(st.sampled_from(fleet.places))
    replaced = (*(place for place in fleet.places if place != lost), Place("engine-99", lost.near))
    made = tree(replaced, fleet.fanout, previous=before)
    assert_tree(made, replaced, fleet.fanout)
    if len({place.zone for place in fleet.places}) == 1:
        assert {key for key in before if key in made and made[key] != before[key]} <= set(children(before, lost.key))


@settings(max_examples=EXAMPLES)
@given(fleets(), st.data())
def test_when_one_stalls_its_children_turn_to_others_and_nobody_else_moves(fleet: Fleet, data: st.DataObject) -> None:
    """After one is lost or slow: still a tree, the fanout kept where one is free, the stalled one feeds nobody."""
    before = tree(fleet.places, fleet.fanout, sources=fleet.sources)
    stalled = data.draw(st.sampled_from(sorted(before)))
    after = mended(before, {stalled})
    assert not children(after, stalled)
    assert {key for key in before if after[key] != before[key]} == set(children(before, stalled))
    without = {key: parent for key, parent in after.items() if key != stalled}
    below = fleet.fanout if fleet.fanout > 1 else 2
    sources_too = {key for key, parent in without.items() if parent is None}
    assert_tree(without, tuple(p for p in fleet.places if p.key != stalled), max(below, len(sources_too)))


@settings(max_examples=EXAMPLES)
@given(fleets(), st.data())
def test_several_that_stall_close_no_circle(fleet: Fleet, data: st.DataObject) -> None:
    """Whoever stalls, and however many: every engine is fed once, none by one that is gone or in a circle."""
    before = tree(fleet.places, fleet.fanout, sources=fleet.sources)
    gone = data.draw(st.sets(st.sampled_from(sorted(before)), max_size=6))
    after = mended(before, gone)
    assert_tree(after, fleet.places, len(fleet.places))
    assert all(parent not in gone for key, parent in after.items() if key not in gone)
    for node in sorted(set(before) - gone):
        turned = parents(before, node, gone=gone)
        assert node not in turned
        assert len(turned) == len(set(turned))
        assert not gone & set(turned)


@settings(max_examples=10 * EXAMPLES)
@given(fleets(max_engines=12), st.data())
def test_however_many_come_go_and_fail_the_changed_tree_is_one(fleet: Fleet, data: st.DataObject) -> None:
    """From sync to sync, whoever left, came, or failed in between: everyone is fed once, and nobody in a circle."""
    engines = st.sets(st.sampled_from([place.key for place in fleet.places]))
    places = fleet.places
    made = tree(places, fleet.fanout, sources=fleet.sources)
    for _ in range(2):
        turned = mended(made, data.draw(engines) & made.keys())
        if max(Counter(turned.values()).values()) <= fleet.fanout:  # another is no tree to begin with
            made = turned
        here = data.draw(engines)
        places = tuple(place for place in fleet.places if place.key in here)
        zones = {place.key: place.zone for place in places}
        suspects = frozenset(data.draw(engines))
        changed = follow(made, zones, fleet.fanout, frozenset(fleet.zones), suspects)
        if changed is not None and places:
            assert_tree(changed, places, fleet.fanout)
            made = changed
