"""Which notices become events of their own, and which count on one that is there. Pure.

A condition that turns to and fro is told once, and counted, as recorders of Kubernetes itself do it. The words
stay those of the first time, since an event's note cannot be changed; the status has those of now.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from weightsync_operator.planning.notices import Notice

# A notice is of the series of its like that was told not longer ago than this.
WINDOW = timedelta(minutes=10)
# Between two writes of one series; the first repetition is written at once, since it turns an event into a series.
PAUSE = timedelta(minutes=1)

Kind = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Series:
    """One event that the API holds. count: how often it was so, by now; written: when the event last said that."""

    event: str
    count: int
    seen: datetime
    written: datetime


@dataclass(frozen=True, slots=True)
class First:
    """Write an event of its own."""


@dataclass(frozen=True, slots=True)
class Again:
    """Write this count into that event."""

    event: str
    count: int


@dataclass(frozen=True, slots=True)
class Later:
    """Counted; written with the next one that is due."""


@dataclass(slots=True)
class Told:
    """What was told of one WeightSync."""

    _series: dict[Kind, Series] = field(default_factory=dict)

    def next(self, notice: Notice, now: datetime) -> First | Again | Later:
        """What to write for it. A series that is over is forgotten here, so that none is kept for ever."""
        self._series = {kind: one for kind, one in self._series.items() if now - one.seen <= WINDOW}
        kind = _kind(notice)
        known = self._series.get(kind)
        if known is None:
            return First()
        count = known.count + 1
        due = known.count == 1 or now - known.written >= PAUSE
        self._series[kind] = Series(known.event, count, now, now if due else known.written)
        return Again(known.event, count) if due else Later()

    def first(self, notice: Notice, event: str, now: datetime) -> None:
        """It was written, as that event."""
        self._series[_kind(notice)] = Series(event, 1, now, now)

    def lost(self, notice: Notice) -> None:
        """Its event is not there any more: the API server keeps events for an hour or so."""
        self._series.pop(_kind(notice), None)


def _kind(notice: Notice) -> Kind:
    return notice.type, notice.reason, notice.action
