"""Which requests are too old: of a term, or of a sync, that is over."""

import pytest

from weightsync.errors import Refused
from weightsync_agent.protocol.fence import LIVES, Fence, ended, sync_id


@pytest.mark.parametrize(
    ("sync", "newest", "over"),
    [
        pytest.param("uid/life/1", "uid/life/2", True, id="the coordinator began another since"),
        pytest.param("uid/life/9", "uid/life/10", True, id="they are numbers, not words"),
        pytest.param("uid/life/2", "uid/life/2", False, id="the newest itself, asking for another rank"),
        pytest.param("uid/life/3", "uid/life/2", False, id="one that has just begun"),
        pytest.param("uid/life/1", "uid/other/2", False, id="of another life nothing is known"),
        pytest.param("uid/life/1", "gone/life/2", False, id="nor of another coordinator"),
        pytest.param("uid/life/1", "", False, id="the first that is heard of"),
        pytest.param("1", "2", False, id="no coordinator's name"),
        pytest.param("uid/life/x", "uid/life/2", False, id="no number"),
        pytest.param("uid/life/1", "uid/life/" + "9" * 5000, False, id="a number that is none of ours"),
        pytest.param("uid/life/\u00b2", "uid/life/3", False, id="a character that only looks like a digit"),
    ],
)
def test_a_sync_is_over_once_its_coordinator_has_begun_another(sync: str, newest: str, over: bool) -> None:
    """By its own count: the versions' numbers may fall from one to the next."""
    assert ended(sync, newest) is over


def test_what_was_heard_of_late_changes_nothing() -> None:
    """The newest stays, in whichever order requests are delivered; terms are checked first."""
    fence = Fence(3, "uid")
    fence.hear(sync_id("uid", "life", 5))
    fence.hear(sync_id("uid", "life", 4))
    fence.check_sync(3, "uid", sync_id("uid", "life", 5))
    for term, count, reason in ((3, 4, "SyncEnded"), (2, 6, "StaleTerm")):
        with pytest.raises(Refused) as refused:
            fence.check_sync(term, "uid", sync_id("uid", "life", count))
        assert refused.value.reason == reason


def test_a_coordinator_that_restarted_is_obeyed() -> None:
    """Its syncs are counted anew: whatever was heard of the life before locks none of them out."""
    fence = Fence(3, "uid")
    for sync in (sync_id("uid", "a", 7), sync_id("uid", "b", 1), sync_id("uid", "a", 8), sync_id("uid", "b", 2)):
        fence.hear(sync)
        fence.check_sync(3, "uid", sync)


def test_a_life_that_was_followed_by_another_is_not_forgotten() -> None:
    """Its older requests are refused also after the coordinator has restarted; what is kept is bounded."""
    fence = Fence(3, "uid")
    for sync in (sync_id("uid", "a", 7), sync_id("uid", "b", 1)):
        fence.hear(sync)
    assert fence.over(sync_id("uid", "a", 6))
    for life in range(1000):
        fence.hear(sync_id("uid", str(life), 1))
    assert len(fence.syncs) == LIVES
