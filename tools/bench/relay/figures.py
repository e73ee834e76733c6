"""What the trials found, as measures with their bounds. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from weightsync.measures import Measure
from weightsync.units import format_bytes

BESIDE_A_STOPPED_ONE = 1.1
BESIDE_A_JOIN = 1.1
JOIN = 1.3  # over what the link alone takes
MANY_JOINS = 4.0  # over one
NOTHING = 0.01  # of a version: requests, answers and acknowledgements
HEADERS = 1.025  # what the counters may see for each version that is sent
ALL_OVER_ONE = 1.3  # for each version that the trainer's link must carry


@dataclass(frozen=True)
class Joins:
    """Seconds from the first holder that was asked to the last bucket; sent: by the trainer's pod meanwhile.

    many: of ``count`` at once, from one holder; busy: beside a sync, which took ``sync`` seconds at the slowest.
    """

    one: float
    sent: int
    count: int
    many: float
    busy: float
    sync: float
    without_trainer: float


@dataclass(frozen=True)
class Found:
    """Seconds are to verified. together and stopped: of the slowest engine; sent: bytes out of the trainer's pod.

    fanout: of the relay, 0 without. stopped: one engine was, in the middle; of those that it does not feed. joins:
    None where they were not tried.
    """

    nbytes: int
    engines: int
    rate: int
    fanout: int
    alone: Sequence[float]
    together: Sequence[float]
    sent: Sequence[int]
    stopped: Sequence[float]
    joins: Joins | None


def measures(found: Found) -> list[Measure]:
    """The report."""
    return [*_syncs(found), *(_joins(found, found.joins) if found.joins is not None else [])]


def _syncs(found: Found) -> list[Measure]:
    fed = min(found.engines, found.fanout or found.engines)
    relay = f"fanout {found.fanout}" if found.fanout else "no relay"
    how = f"{found.engines} engines, {relay}, {_conditions(found)}, median of {len(found.together)}"
    one, all_of_them = statistics.median(found.alone), statistics.median(found.together)
    return [
        Measure(name="egress of the trainer's pod over the version", unit="1", better="lower",
                value=statistics.median(found.sent) / found.nbytes, bound=HEADERS * fed,
                how=f"bytes on its link, headers and all; {how}"),
        Measure(name="all engines over one alone", value=all_of_them / one, unit="1", better="lower",
                bound=ALL_OVER_ONE * fed, how=f"publish to verified at the slowest; {how}"),
        Measure(name="one engine alone", value=one, unit="s", better="lower",
                how=f"publish to verified; the link alone takes {found.nbytes / found.rate:.2f} s"),
        Measure(name="beside one that is stopped", value=statistics.median(found.stopped) / all_of_them, unit="1",
                bound=BESIDE_A_STOPPED_ONE, better="lower",
                how="one stopped (SIGSTOP) in the middle: slowest of those that it does not feed, once, over "
                f"undisturbed; {how}"),
    ]  # fmt: skip


def _joins(found: Found, joins: Joins) -> list[Measure]:
    raw = found.nbytes / found.rate
    how = f"first holder asked to last bucket verified, {_conditions(found)}"
    undisturbed = statistics.median(found.together)
    return [
        Measure(name="one join over its link alone", value=joins.one / raw, unit="1", better="lower", bound=JOIN,
                how=how),
        Measure(name="trainer's egress for it, over the version", value=joins.sent / found.nbytes, unit="1",
                better="lower", bound=NOTHING, how=f"bytes on its link, requests and answers too; {how}"),
        Measure(name="a join beside a sync over its link alone", value=joins.busy / raw, unit="1", better="lower",
                bound=JOIN, how=f"of the version before; {how}"),
        Measure(name="a sync beside a join", value=joins.sync / undisturbed, unit="1", better="lower",
                bound=BESIDE_A_JOIN, how="publish to verified at the slowest, over undisturbed"),
        Measure(name="a join without the trainer over its link alone", value=joins.without_trainer / raw, unit="1",
                better="lower", bound=JOIN, how=f"its pod was deleted; {how}"),
        Measure(name=f"{joins.count} joins at once over one", value=joins.many / joins.one, unit="1", better="lower",
                bound=MANY_JOINS, how=f"one holder at first; first begin to last end; {how}"),
    ]  # fmt: skip


def _conditions(found: Found) -> str:
    return f"{format_bytes(found.nbytes)}, each pod's link {found.rate / 1e6:.0f} MB/s each way"
