"""Who may read an engine's arenas: few at a time, each as long as it says so."""

import pytest

from weightsync.errors import Refused
from weightsync_agent.protocol.readers import MOST, PASSED_SECONDS, SECONDS, Readers


def test_only_so_many_read_at_a_time() -> None:
    """The next one is told to ask another, until somebody ends or falls silent."""
    readers = Readers()
    for index in range(MOST):
        readers.admit(f"r{index}", 0.0)
    with pytest.raises(Refused, match="ask another") as refused:
        readers.admit("late", 1.0)
    assert (refused.value.reason, refused.value.status) == ("Busy", 503)
    readers.end("r0")
    assert readers.admit("late", 1.0) == SECONDS
    assert readers.count(1.0) == MOST


def test_engines_that_read_in_a_sync_are_told_and_take_nobodys_place() -> None:
    """Joiners turn to engines that nobody reads from; where there is none they may read all the same."""
    readers = Readers()
    readers.passes("child", 0.0)
    readers.passes("other", 0.0)
    readers.admit("joiner", 1.0)
    readers.passes("child", 4.0)
    assert (readers.load(4.0), readers.count(4.0)) == (3, 1)
    assert readers.load(PASSED_SECONDS) == 2
    readers.admit("late", 5.0)
    assert readers.load(4.0 + PASSED_SECONDS) == 2


def test_who_has_a_lease() -> None:
    """Until it ends, by a word or by itself."""
    readers = Readers()
    readers.admit("a", 0.0)
    readers.admit("b", 0.0)
    readers.end("b")
    assert [readers.reads(name, 1.0) for name in "abc"] == [True, False, False]
    assert not readers.reads("a", SECONDS)


def test_a_reader_that_asks_again_keeps_its_place_and_a_silent_one_loses_it() -> None:
    """A lease ends by itself: its reader may have died."""
    readers = Readers(1)
    readers.admit("r", 0.0)
    readers.admit("r", SECONDS - 1)
    with pytest.raises(Refused):
        readers.admit("other", SECONDS + 1)
    assert readers.count(2 * SECONDS) == 0
    readers.admit("other", 2 * SECONDS)
    readers.end("nobody")
