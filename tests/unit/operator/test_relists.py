"""What kopf tells as parts of lists is enough to know that it lists anew."""

import pytest

from weightsync_operator.feed import Feed
from weightsync_operator.relists import Relists
from weightsync_operator.store import Store

A, B, C = ("pods", "rl", "a"), ("pods", "rl", "b"), ("pods", "rl", "c")
ELSEWHERE = ("pods", "other", "d")
SYNC = ("weightsyncs", "rl", "s")


@pytest.mark.parametrize(
    ("told", "anew"),
    [
        pytest.param([A, B, C, SYNC], [], id="one list of each kind"),
        pytest.param([A, B, C, A, B, C], [3], id="a second list is known by its first object, and only once"),
        pytest.param([A, B, C, B, C], [3], id="a second list that lacks the first object"),
        pytest.param([A, B, A, B, A], [2, 4], id="a third list"),
        pytest.param([A, B, SYNC, A, SYNC], [3, 4], id="each kind by itself"),
        pytest.param([A, ELSEWHERE, A, ELSEWHERE], [2, 3], id="each namespace by itself"),
    ],
)
def test_a_list_in_place_of_a_watch(told: list[tuple[str, str, str]], anew: list[int]) -> None:
    """True for the first object that is told of again, however many are."""
    relists = Relists(spaced=True)
    assert [place for place, one in enumerate(told) if relists.listed(*one)] == anew


def test_all_namespaces_are_one_list() -> None:
    """Where one watch is for all, a list of many namespaces is one."""
    relists = Relists(spaced=False)
    assert [relists.listed(*one) for one in (A, ELSEWHERE, A, ELSEWHERE)] == [False, False, True, False]


def test_the_feed_says_of_what_kind() -> None:
    """With or without a namespace."""
    missed: list[str] = []
    feed = Feed(Store(), lambda _: None, lambda _: None, missed=missed.append)
    for _ in range(2):
        feed.listed("pods", {"metadata": {"uid": "a", "namespace": "rl"}})
        feed.listed("nodes", {"metadata": {"uid": "n"}})
    assert missed == ["pods", "nodes"]
