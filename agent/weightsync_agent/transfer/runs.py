"""Where the parts of a payload lie that is not in one piece: an engine's own parameters. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Placed(NamedTuple):
    """Bytes [offset, offset + nbytes) of a payload lie at ``address``."""

    offset: int
    nbytes: int
    address: int


def joined(parts: Iterable[Placed]) -> list[Placed]:
    """By rising offset, those put together that touch in the payload and in memory: the fewer, the fewer submits."""
    runs: list[Placed] = []
    for part in sorted(parts):
        last = runs[-1] if runs else None
        touches = last is not None and last.offset + last.nbytes == part.offset
        if last is not None and touches and last.address + last.nbytes == part.address:
            runs[-1] = last._replace(nbytes=last.nbytes + part.nbytes)
        else:
            runs.append(part)
    return runs


def confined(runs: Iterable[Placed], regions: Iterable[tuple[int, int]]) -> tuple[list[Placed], list[Placed]]:
    """The runs cut where one registered region (address, bytes) ends and the next begins; and what lies in none.

    Regions do not overlap: Mooncake registers no byte twice. A write must lie within one of them, and an allocator
    gives parameters that touch out of blocks that are registered one by one.
    """
    known, parts, missing = sorted(regions), list[Placed](), list[Placed]()
    for run in runs:
        at, stop = run.address, run.address + run.nbytes
        while at < stop:
            place = bisect_right(known, at, key=lambda region: region[0])
            start, length = known[place - 1] if place else (0, 0)
            held = start <= at < start + length
            following = known[place][0] if place < len(known) else stop
            end = min(stop, start + length if held else following)
            (parts if held else missing).append(Placed(run.offset + at - run.address, end - at, at))
            at = end
    return parts, missing


def within(runs: Sequence[Placed], offset: int, nbytes: int) -> list[Placed]:
    """What of the runs (by rising offset, apart) lies in [offset, offset + nbytes) of the payload."""
    stop, found = offset + nbytes, []
    for run in runs[max(0, bisect_right(runs, offset, key=lambda run: run.offset) - 1) :]:
        if run.offset >= stop:
            break
        first, last = max(offset, run.offset), min(stop, run.offset + run.nbytes)
        if first < last:
            found.append(Placed(first, last - first, run.address + first - run.offset))
    return found
