"""When engines joined, by what their agents said. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tools.chaos.records import Line, moment

BEGUN = ("LEASING", "PULLING")  # a holder is known and asked, or read from
DONE = "APPLYING"  # every bucket is there


@dataclass(frozen=True)
class Join:
    """One engine's: seconds since 1970 at which it first asked a holder, and at which it had every bucket."""

    began: float
    ended: float


def join(lines: Iterable[Line], since: float) -> Join | None:
    """The first that ended after ``since``; None where none has."""
    began = 0.0
    for line in lines:
        if line.get("event") != "join" or moment(line) < since:
            continue
        if line.get("now") in BEGUN:
            began = began or moment(line)
        elif line.get("now") == DONE and began:
            return Join(began, moment(line))
    return None


def span(joins: Sequence[Join]) -> float:
    """Seconds from the first one's begin to the last one's end."""
    return max(join.ended for join in joins) - min(join.began for join in joins)
