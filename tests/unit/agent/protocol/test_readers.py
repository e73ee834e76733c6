"""Who may read an engine's arenas: few at a time, each as long as it says so."""

import pytest

from weightsync.errors import Refused
from weightsync_agent.protocol.readers import MOST, SECONDS, Readers


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
