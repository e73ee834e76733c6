"""What a joining engine aims at, and whom it reads it from."""

import pytest

from weightsync.version import Version
from weightsync.wire.v1 import Decided, Held
from weightsync_agent.protocol.holders import (
    MOST_BEHIND,
    Offer,
    follows,
    goal,
    newest,
    offers_of,
    order,
    ring,
    suffices,
    whom,
)

OLD, NEW, OTHER = "1" * 16, "2" * 16, "3" * 16


def decided(number: int, term: int = 1, lineage: str = OLD) -> Decided:
    return Decided(version=Version(lineage=lineage, number=number, root="4" * 64), term=term)


def offer(uid: str, holds: Decided, **more: int) -> Offer:
    return Offer(uid, f"{uid}:1", holds, **{"most": 2, **more})


@pytest.mark.parametrize(
    ("own", "found", "may"),
    [
        pytest.param(None, decided(1), True, id="one that had nothing takes any"),
        pytest.param(decided(3), decided(3, term=2), True, id="the same again, whoever decided it anew"),
        pytest.param(decided(3), decided(4), True, id="a higher number of the lineage"),
        pytest.param(decided(3), decided(2, term=9), False, id="never a lower one, of whatever term"),
        pytest.param(decided(3), decided(1, term=2, lineage=NEW), True, id="another lineage of a later term"),
        pytest.param(decided(3, term=2), decided(9, term=1, lineage=NEW), False, id="not one of an earlier term"),
        pytest.param(decided(3), decided(9, lineage=NEW), False, id="nor of the same term: nobody can order them"),
    ],
)
def test_what_may_follow_what_an_engine_had(own: Decided | None, found: Decided, may: bool) -> None:
    """An engine never goes back by itself."""
    assert follows(own, found) is may


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        pytest.param([], None, id="nothing is held"),
        pytest.param([decided(2), decided(3), decided(1)], decided(3), id="the highest number"),
        pytest.param([decided(9), decided(1, 2, NEW)], decided(1, 2, NEW), id="the later term before the number"),
        pytest.param(
            [decided(5), decided(1, lineage=NEW), decided(2, lineage=NEW)], decided(2, lineage=NEW),
            id="of two lineages of a term the one that most hold",
        ),
    ],
)  # fmt: skip
def test_the_newest_of_what_engines_hold(held: list[Decided], expected: Decided | None) -> None:
    """Whatever the order in which they answered."""
    offers = [offer(f"e{index}", each) for index, each in enumerate(held)]
    assert newest(offers) == newest(offers[::-1]) == expected


@pytest.mark.parametrize(
    ("own", "held", "said", "expected"),
    [
        pytest.param(None, [decided(4)], decided(5), decided(5), id="the coordinator knows a newer one than engines"),
        pytest.param(None, [decided(6)], decided(5), decided(6), id="an engine knows one that it has not heard of"),
        pytest.param(None, [decided(9)], decided(1, lineage=NEW), decided(1, lineage=NEW), id="it orders lineages"),
        pytest.param(decided(7), [decided(6)], decided(6), None, id="not even at its word to a lower number"),
        pytest.param(decided(7), [decided(6)], None, None, id="without it to nothing older either"),
        pytest.param(decided(7), [decided(6), decided(8)], None, decided(8), id="without it to what is newer"),
        pytest.param(None, [], None, None, id="nobody says anything"),
    ],
)  # fmt: skip
def test_what_is_aimed_at(
    own: Decided | None, held: list[Decided], said: Decided | None, expected: Decided | None
) -> None:
    """The coordinator's word where there is one, else the newest that engines hold."""
    assert goal(own, [offer(f"e{index}", each) for index, each in enumerate(held)], said) == expected


def test_holders_are_asked_the_nearest_first_then_by_load_and_full_ones_last() -> None:
    """Those that hold another version, or lend to nobody, are not asked at all."""
    aim = decided(3)
    offers = [
        offer("full", aim, readers=2), offer("far", aim, near=2), offer("busy", aim, readers=1), offer("free", aim),
        offer("old", decided(2)), offer("knows", aim, most=0),
    ]  # fmt: skip
    assert [each.uid for each in order(offers, aim, "r")] == ["free", "busy", "far", "full"]


def test_what_engines_only_read_themselves_counts_where_nothing_is_held() -> None:
    """Whoever has all of it may be gone: an older version that is there comes first, without a coordinator's word."""
    grows, has = offer("grows", decided(9), behind=1), offer("has", decided(8))
    assert goal(None, [grows, has], None) == decided(8)
    assert goal(None, [grows], None) == decided(9)
    assert goal(decided(8), [grows, offer("has", decided(7))], None) == decided(9)
    assert goal(None, [grows, has], decided(8)) == decided(8)


@pytest.mark.parametrize(
    ("own", "held", "expected"),
    [
        pytest.param(None, [offer("a", decided(4)), offer("b", decided(3))], decided(4), id="the one before it"),
        pytest.param(None, [offer("a", decided(4)), offer("b", decided(5))], decided(5), id="one has it by now"),
        pytest.param(None, [offer("a", decided(4)), offer("b", decided(5), behind=1)], decided(5), id="one reads it"),
        pytest.param(decided(4), [offer("a", decided(4))], decided(4), id="the one that it had itself"),
        pytest.param(decided(5), [offer("a", decided(4))], decided(5), id="nothing older than what it had"),
        pytest.param(None, [offer("a", decided(4, lineage=NEW))], decided(5), id="none of another lineage"),
        pytest.param(None, [offer("a", decided(4), behind=1)], decided(5), id="none that nobody holds"),
    ],
)
def test_until_an_engine_holds_what_a_sync_brings_the_version_before_it_serves(
    own: Decided | None, held: list[Offer], expected: Decided
) -> None:
    """It is decided early where engines are not waited for. Where no sync goes on, the sources write at once."""
    assert goal(own, held, decided(5), syncing=True) == expected
    assert goal(own, held, decided(5)) == decided(5)


def test_who_reads_itself_is_asked_after_who_has_all_and_never_who_is_farther_behind() -> None:
    """Nobody turns to one that waits for him: that one is farther behind than he ever was. Feeders come last."""
    aim = decided(3)
    offers = [
        offer("third", aim, behind=3), offer("first", aim, behind=1, readers=1), offer("has", aim, readers=1),
        offer("second", aim, behind=2), offer("feeds", aim, feeds=True), offer("deep", aim, behind=MOST_BEHIND),
    ]  # fmt: skip
    assert [each.uid for each in order(offers, aim, "r")] == ["has", "first", "second", "third", "feeds"]
    assert [each.uid for each in order(offers, aim, "r", 2)] == ["has", "first", "feeds"]
    assert [each.uid for each in order(offers, aim, "r", 1)] == ["has", "feeds"]


def test_one_answer_may_hold_two_offers() -> None:
    """An engine that goes over to a newer version lends both, from the same places."""
    held = Held(uid="h", decided=decided(2), readers=1, most=2, grows=decided(3), behind=2)
    expected = [offer("h", decided(2), readers=1), offer("h", decided(3), readers=1, behind=2)]
    assert offers_of(held, "h:1", feeds=False) == expected
    assert [each.behind for each in offers_of(Held(uid="h", grows=decided(3)), "h:1", feeds=True)] == [1]
    assert offers_of(Held(uid="h"), "h:1", feeds=False) == []


@pytest.mark.parametrize(
    ("more", "enough"),
    [
        pytest.param({}, True, id="a free one"),
        pytest.param({"behind": 1}, True, id="one that reads itself"),
        pytest.param({"readers": 2}, False, id="a full one"),
        pytest.param({"feeds": True}, False, id="one whose link is in use"),
    ],
)
def test_when_nobody_else_need_be_asked(more: dict[str, int], enough: bool) -> None:
    """Hundreds may join at once."""
    assert suffices([offer("h", decided(3), **more)], decided(3)) is enough


def test_readers_spread_over_equal_holders() -> None:
    """Of many readers each holder is the first for some; one reader always has the same order."""
    aim = decided(3)
    offers = [offer(f"e{index}", aim) for index in range(4)]
    firsts = [order(offers, aim, f"r{index}")[0].uid for index in range(40)]
    assert set(firsts) == {"e0", "e1", "e2", "e3"}
    assert firsts == [order(offers[::-1], aim, f"r{index}")[0].uid for index in range(40)]


def test_readers_spread_over_full_holders_however_far_behind_these_are() -> None:
    """A place may have come free at any of them: those that all would ask first would have none left."""
    aim = decided(3)
    offers = [offer(f"e{n}", aim, readers=2 + n, behind=n) for n in range(4)]
    assert {order(offers, aim, f"r{n}")[0].uid for n in range(40)} == {"e0", "e1", "e2", "e3"}


def test_who_asks_so_many_engines_need_know_of_so_many_that_are_special() -> None:
    """Whichever these are: they hold all those among the engines that it asks."""
    engines = [f"e{n}" for n in range(300)]
    for reader in ("a", "b", "c", "d"):
        asked = whom(reader, ring(engines), 64)
        assert len(set(asked)) == 64
        for special in (engines[::2], engines[:70], engines, engines[7:9]):
            assert set(asked) & set(special) <= set(whom(reader, ring(special), 64))


def test_each_engine_is_asked_by_some_and_a_reader_asks_the_same_ones() -> None:
    """Also where there are fewer than it asks."""
    engines = [f"e{n}" for n in range(100)]
    asked = [whom(f"r{n}", ring(engines), 8) for n in range(400)]
    assert {uid for each in asked for uid in each} == set(engines)
    assert asked[3] == whom("r3", ring(engines[::-1]), 8)
    assert sorted(whom("r", ring(engines[:5]), 8)) == engines[:5]
    assert whom("r", ring([]), 8) == []
