"""Which notices become events, and which are counted on one that is there."""

from datetime import UTC, datetime, timedelta

import pytest

from weightsync_operator.planning.notices import Notice
from weightsync_operator.planning.series import PAUSE, WINDOW, Again, First, Later, Told

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
BEHIND = Notice("Warning", "EnginesBehind", "ReportDegraded", "17 of 20 engines are behind")
SECOND = timedelta(seconds=1)


@pytest.fixture
def told() -> Told:
    """One WeightSync, of which engines being behind was told once."""
    found = Told()
    assert found.next(BEHIND, BEGAN) == First()
    found.first(BEHIND, "policy-1", BEGAN)
    return found


def test_the_first_repetition_makes_a_series_at_once(told: Told) -> None:
    """Whatever the words are: how many are behind is another number each time."""
    other = Notice("Warning", "EnginesBehind", "ReportDegraded", "3 of 20 engines are behind")
    assert told.next(other, BEGAN + SECOND) == Again("policy-1", 2)


def test_further_ones_are_counted_and_written_once_a_minute(told: Told) -> None:
    """A condition that turns each second costs one write a minute, and no count is lost."""
    steps = [told.next(BEHIND, BEGAN + number * SECOND) for number in range(1, 130)]
    written = [step for step in steps if step != Later()]
    assert written == [Again("policy-1", 2), Again("policy-1", 62), Again("policy-1", 122)]
    assert PAUSE == 60 * SECOND


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Notice("Normal", "AllServed", "ReportDegraded", ""), id="another reason"),
        pytest.param(Notice("Normal", "EnginesBehind", "ReportDegraded", ""), id="another type"),
        pytest.param(Notice("Warning", "EnginesBehind", "Plan", ""), id="another action"),
    ],
)
def test_what_is_not_alike_is_an_event_of_its_own(told: Told, other: Notice) -> None:
    """And does not end the series of the other."""
    assert told.next(other, BEGAN + SECOND) == First()
    assert told.next(BEHIND, BEGAN + 2 * SECOND) == Again("policy-1", 2)


def test_a_series_ends_when_nothing_was_counted_for_its_window(told: Told) -> None:
    """The window slides with what is seen, and what comes after it is news."""
    assert told.next(BEHIND, BEGAN + WINDOW) == Again("policy-1", 2)
    assert told.next(BEHIND, BEGAN + 2 * WINDOW) == Again("policy-1", 3)
    assert told.next(BEHIND, BEGAN + 3 * WINDOW + SECOND) == First()


def test_an_event_that_is_gone_is_told_anew(told: Told) -> None:
    """The API server removes events by their age, also those that are still counted on."""
    told.lost(BEHIND)
    assert told.next(BEHIND, BEGAN + SECOND) == First()


def test_an_event_that_could_not_be_written_is_no_series() -> None:
    """The next of its kind is tried as a first one."""
    told = Told()
    assert [told.next(BEHIND, BEGAN), told.next(BEHIND, BEGAN + SECOND)] == [First(), First()]
