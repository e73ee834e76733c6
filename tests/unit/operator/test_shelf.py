"""Events and lists cross; the shelf ends right whatever their order."""

import pytest

from weightsync_operator.shelf import Shelf


def test_an_older_event_is_ignored() -> None:
    """What arrives late does not undo what is known."""
    shelf = Shelf[str]()
    shelf.put("a", 5, "new")
    assert shelf.put("a", 4, "old") is None
    assert shelf.get("a") == "new"


def test_equal_records_are_no_change() -> None:
    """A heartbeat that changes no field of the record wakes nobody."""
    shelf = Shelf[str]()
    assert shelf.put("a", 1, "same") is not None
    assert shelf.put("a", 2, "same") is None


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([("put", 3)], "listed", id="in the list and not changed since"),
        pytest.param([("put", 12)], "event 12", id="changed after the list"),
        pytest.param([("drop", 12)], None, id="deleted after the list: the list must not bring it back"),
        pytest.param([("put", 3), ("drop", 4)], "listed", id="deleted and made anew before the list"),
    ],
)
def test_a_list_meets_events(events: list[tuple[str, int]], expected: str | None) -> None:
    """A list taken at version 10 that holds the object as of version 8."""
    shelf = Shelf[str]()
    for kind, version in events:
        if kind == "put":
            shelf.put("a", version, f"event {version}")
        else:
            shelf.drop("a", version)
    shelf.replace(10, {"a": (8, "listed")})
    assert shelf.get("a") == expected


def test_what_a_list_lacks_is_gone_unless_newer() -> None:
    """A deletion that no event told is found; an object made after the list stays."""
    shelf = Shelf[str]()
    shelf.put("lost", 3, "lost")
    shelf.put("young", 11, "young")
    changes = shelf.replace(10, {})
    assert [(change.old, change.new) for change in changes] == [("lost", None)]
    assert list(shelf) == ["young"]
    assert len(shelf) == 1


def test_a_list_of_a_part_says_nothing_of_the_rest() -> None:
    """One namespace's list leaves what is known of the others."""
    shelf = Shelf[str]()
    for name in ("ours", "theirs"):
        shelf.put(name, 3, name)
    changes = shelf.replace(10, {}, lambda value: value == "ours")
    assert [change.old for change in changes] == ["ours"]
    assert list(shelf) == ["theirs"]
