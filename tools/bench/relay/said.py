"""When engines joined, and who fed whom, by what agents said. Pure."""

from collections.abc import Iterable, Mapping, Sequence
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


def fed(lines: Sequence[Line]) -> dict[str, str]:
    """By uid of an engine, that of the one which fed it in the last sync; without those that the trainer wrote to."""
    trees = [line["tree"] for line in lines if line.get("event") == "relay"]
    return {_uid(key): _uid(parent) for key, parent in (trees[-1] if trees else {}).items() if parent}


def below(parents: Mapping[str, str], uid: str) -> set[str]:
    """Uids of the engines that this one fed, directly or not."""
    found: set[str] = set()
    level = {uid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found


def _uid(key: str) -> str:
    """Of the engine's leader: a key names its life, too."""
    return key.partition("/")[0]
