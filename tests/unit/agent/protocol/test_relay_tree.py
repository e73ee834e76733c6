"""Relay trees as they look: small cases of every rule."""

import pytest

from weightsync_agent.protocol.relay_tree import Place, children, depth, mended, parents, tree

EIGHT = [Place(f"e{i}") for i in range(8)]
EIGHT_BY_TWO = {"e0": None, "e1": None, "e2": "e0", "e3": "e1", "e4": "e0", "e5": "e1", "e6": "e2", "e7": "e3"}


def zoned(**zones: int) -> list[Place]:
    """So many engines in each zone."""
    return [Place(f"{zone}{i}", (zone,)) for zone, count in zones.items() for i in range(count)]


CASES = {
    "nothing to feed": ([], 2, (), {}),
    "no relay at all": (EIGHT[:3], 0, (), {"e0": None, "e1": None, "e2": None}),
    "no more engines than the fanout": (EIGHT[:2], 2, (("a",),), {"e0": None, "e1": None}),
    "a chain": (EIGHT[:3], 1, (), {"e0": None, "e1": "e0", "e2": "e1"}),
    "eight by two": (EIGHT, 2, (), EIGHT_BY_TWO),
    "sources in another zone feed one of a zone": (
        zoned(b=3), 2, (("a",),), {"b0": None, "b1": "b0", "b2": "b0"},
    ),
    "a single engine elsewhere hangs where it costs no level": (
        zoned(a=5, b=1), 2, (("a",),), {"a0": None, "a1": None, "a2": "a1", "a3": "a0", "a4": "a1", "b0": "a0"},
    ),
    "two zones have a root each": (
        zoned(a=3, b=3), 2, (("a",),),
        {"a0": None, "b0": None, "a1": "a0", "b1": "b0", "a2": "a0", "b2": "b0"},
    ),
    "racks stay together below one of theirs": (
        [Place("x0", ("a", "x")), Place("x1", ("a", "x")), Place("y0", ("a", "y")), Place("y1", ("a", "y"))],
        1, (("a", "y"),), {"x0": None, "x1": "x0", "y0": "x1", "y1": "y0"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("targets", "fanout", "sources", "expected"), CASES.values(), ids=CASES.keys())
def test_tree(
    targets: list[Place], fanout: int, sources: tuple[tuple[str, ...], ...], expected: dict[str, str | None]
) -> None:
    """Who feeds whom is what the case says."""
    assert tree(targets, fanout, sources=sources) == expected


def test_a_suspect_is_a_leaf() -> None:
    """One that failed last time feeds nobody, and takes no place that another would feed from."""
    made = tree(EIGHT, 2, suspects={"e0"})
    assert not children(made, "e0")
    assert depth(made) == depth(EIGHT_BY_TWO)


def test_one_that_comes_moves_nobody() -> None:
    """The ninth engine hangs where a place is free; all others keep their parents."""
    made = tree([*EIGHT, Place("a-new-one")], 2, previous=EIGHT_BY_TWO)
    assert made == {**EIGHT_BY_TWO, "a-new-one": "e2"}


def test_the_last_leaf_takes_the_place_of_one_that_goes() -> None:
    """A root goes: a leaf from the bottom feeds its children."""
    made = tree(EIGHT[1:], 2, previous=EIGHT_BY_TWO)
    assert made == {"e1": None, "e7": None, "e2": "e7", "e3": "e1", "e4": "e7", "e5": "e1", "e6": "e2"}


def test_an_engine_s_new_life_takes_the_place_of_the_former() -> None:
    """Only whom it feeds have another parent."""
    made = tree([Place("e0-again"), *EIGHT[1:]], 2, previous=EIGHT_BY_TWO)
    assert made == {"e0-again": None, "e1": None, "e2": "e0-again", "e3": "e1", "e4": "e0-again", "e5": "e1",
                    "e6": "e2", "e7": "e3"}  # fmt: skip


def test_one_that_failed_gives_up_its_children_and_stays_at_the_bottom() -> None:
    """A suspect of the last sync becomes a leaf, and as few others as can move."""
    made = tree(EIGHT, 2, previous=EIGHT_BY_TWO, suspects={"e0"})
    assert not children(made, "e0")
    assert sum(made[key] != parent for key, parent in EIGHT_BY_TWO.items()) <= 4


def test_another_fleet_gets_another_tree() -> None:
    """Where most have changed nothing is kept."""
    others = [Place(f"o{i}") for i in range(8)]
    assert tree(others, 2, previous=EIGHT_BY_TWO) == tree(others, 2)


def test_children_of_a_root_that_stalls_turn_to_others_not_to_the_sources() -> None:
    """The sources' egress does not grow: both children find another engine, each its own."""
    assert parents(EIGHT_BY_TWO, "e2")[0] != parents(EIGHT_BY_TWO, "e4")[0]
    assert {parents(EIGHT_BY_TWO, "e2")[0], parents(EIGHT_BY_TWO, "e4")[0]} <= {"e3", "e5", "e7"}


def test_a_child_turns_to_its_grandparent_first() -> None:
    """The stalled one's place is free."""
    assert parents(EIGHT_BY_TWO, "e6")[0] == "e0"
    assert parents(EIGHT_BY_TWO, "e6", gone={"e0"})[0] in {"e3", "e5", "e7", "e1"}


def test_where_nobody_else_is_left_only_the_sources_are() -> None:
    """A chain whose head stalls."""
    chain = {"e0": None, "e1": "e0", "e2": "e1"}
    assert parents(chain, "e1") == []
    assert mended(chain, {"e0"}) == {"e0": None, "e1": None, "e2": "e1"}


def test_a_root_that_is_left_by_its_source_turns_to_other_roots() -> None:
    """Its own subtree is no help."""
    assert parents(EIGHT_BY_TWO, "e0")[0] == "e1"
    assert not {"e2", "e4", "e6"} & set(parents(EIGHT_BY_TWO, "e0"))
