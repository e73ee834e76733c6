"""What the trials found, as measures with their bounds. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from weightsync.measures import Measure
from weightsync.units import format_bytes

BESIDE_A_STOPPED_ONE = 1.1


@dataclass(frozen=True)
class Found:
    """Seconds are to verified. together and stopped: of the slowest engine; sent: bytes out of the trainer's pod.

    stopped: with one engine stopped in the middle, of those that it feeds nothing.
    """

    nbytes: int
    engines: int
    rate: int
    alone: Sequence[float]
    together: Sequence[float]
    sent: Sequence[int]
    stopped: Sequence[float]


def measures(found: Found) -> list[Measure]:
    """The report."""
    size, rate = format_bytes(found.nbytes), f"{found.rate / 1e6:.0f} MB/s"
    how = f"{size} to {found.engines} engines, each pod's link {rate} each way, median of {len(found.together)}"
    one, all_of_them = statistics.median(found.alone), statistics.median(found.together)
    return [
        Measure(name="egress of the trainer's pod over the version", unit="1", better="lower",
                value=statistics.median(found.sent) / found.nbytes, how=f"bytes on its link, headers and all; {how}"),
        Measure(name="all engines over one alone", value=all_of_them / one, unit="1", better="lower",
                how=f"publish to verified at the slowest; {how}"),
        Measure(name="one engine alone", value=one, unit="s", better="lower",
                how=f"publish to verified; the link alone takes {found.nbytes / found.rate:.2f} s"),
        Measure(name="beside one that is stopped", value=statistics.median(found.stopped) / all_of_them, unit="1",
                bound=BESIDE_A_STOPPED_ONE, better="lower",
                how=f"slowest of the others, one of them stopped (SIGSTOP) in the middle, over undisturbed; {how}"),
    ]  # fmt: skip
