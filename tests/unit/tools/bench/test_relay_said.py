"""When engines joined, and who fed whom, from the lines of agents."""

from tools.bench.relay.said import Join, below, fed, join, span
from tools.chaos.records import Line


def line(second: int, now: str) -> Line:
    return {"event": "join", "now": now, "timestamp": f"2026-01-01T00:00:{second:02d}+00:00"}


START = 1767225600.0
LINES = [
    line(1, "LEASING"), line(2, "PULLING"), line(4, "LEASING"), line(5, "PULLING"), line(9, "APPLYING"),
    line(20, "LEASING"), line(21, "APPLYING"), {"event": "other", "now": "LEASING"},
]  # fmt: skip


def test_a_join_lasts_from_the_first_holder_to_the_last_bucket() -> None:
    """However many holders it took."""
    assert join(LINES, START) == Join(START + 1, START + 9)


def test_what_was_before_is_another_join() -> None:
    """The one that is measured began later."""
    assert join(LINES, START + 10) == Join(START + 20, START + 21)


def test_a_join_that_has_not_ended_is_none() -> None:
    """Waited for."""
    assert join(LINES[:4], START) is None


def test_several_at_once_take_from_the_first_begin_to_the_last_end() -> None:
    """Also where one begins when another has ended."""
    assert span([Join(3, 5), Join(1, 4), Join(6, 8)]) == 7


def test_below_an_engine_are_those_that_it_fed_in_the_last_sync() -> None:
    """Children and theirs; lives of engines do not matter."""
    lines = [
        {"event": "relay", "tree": {"a/1": None, "b/1": "a/1"}},
        {"event": "relay", "tree": {"a/1": None, "b/1": None, "c/1": "b/1", "d/2": "c/1", "e/1": "a/1"}},
    ]
    assert below(fed(lines), "b") == {"c", "d"}
    assert below(fed(lines), "d") == set()
    assert fed([]) == {}
