"""What a copy program reads, whatever its layout: names, dtypes and shapes of all tensors, as one digest. Pure.

Ranks and parallelisms cut one checkpoint into series differently, so the pieces are left out, and numbers that follow
one another are joined anew. Nothing is made out tensor by tensor but what stands alone.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable

from weightsync.convert.series import PLACE, Series, last_number

_Kind = tuple[str, str, str, tuple[int, ...]]  # name before and after the number, dtype, shape
_Run = tuple[int, int]  # first number, and the one after the last


def checkpoint_digest(series: Iterable[Series]) -> str:
    """16 bytes of blake2b in hex, over (name, dtype, shape) of every tensor; their order does not matter."""
    plain: list[list[object]] = []
    numbered: defaultdict[_Kind, list[_Run]] = defaultdict(list)
    for each in series:
        if each.count > 1 and _counts_last_number(each):
            before, _, after = each.name.partition(PLACE)
            numbered[before, after, each.dtype, each.shape].append((each.first, each.first + each.count))
            continue
        for name in each.names():
            found = last_number(name)
            if found is None:
                plain.append([name, each.dtype, each.shape])
            else:
                before, number, after = found
                numbered[before, after, each.dtype, each.shape].append((number, number + 1))
    runs = [[*kind, _joined(of)] for kind, of in sorted(numbered.items())]
    text = json.dumps([sorted(plain, key=str), runs], separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _counts_last_number(series: Series) -> bool:
    """As fold() makes them. A series from elsewhere may count another number of its names."""
    before, _, after = series.name.partition(PLACE)
    ends = (series.first, series.first + series.count - 1)
    return all(last_number(f"{before}{number}{after}") == (before, number, after) for number in ends)


def _joined(runs: list[_Run]) -> list[_Run]:
    joined: list[_Run] = []
    for first, stop in sorted(runs):
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((first, stop))
    return joined
