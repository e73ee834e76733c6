"""What several threads gain in filling a replica: elapsed seconds of n over those of one, as a publish fills.

Elapsed time, unlike the processor seconds of convert.py, since no thread copies less: other work on the machine
counts against it.
"""

from __future__ import annotations

import mmap
import statistics
import time

import torch

from weightsync import cores
from weightsync.buckets import bucket_size, cut
from weightsync.convert.replay import Replayer
from weightsync.convert.sharing import fill_threads
from weightsync.measures import Measure
from weightsync.testing.programs import plain_program
from weightsync.units import format_bytes

TENSOR = (4096, 2048)  # bfloat16: 16 MiB, a projection of a middling model
BOUNDS = {8: 0.5, 4: 0.8}  # cores at least: n threads over one; on fewer there is nothing to gain


class Fills:
    """One model in host memory, its arena, and a replayer for one thread and one for ``count``."""

    def __init__(self, nbytes: int, count: int) -> None:
        names = [f"t{n}" for n in range(max(1, nbytes // (2 * TENSOR[0] * TENSOR[1])))]
        program = plain_program(dict.fromkeys(names, ("bfloat16", TENSOR)))
        self.nbytes = program.layout.nbytes
        self._arena = mmap.mmap(-1, self.nbytes)
        self.state = {name: torch.full(TENSOR, 1.5, dtype=torch.bfloat16) for name in names}
        buckets = cut([(0, self.nbytes)], bucket_size(self.nbytes, 512 << 20))
        view = memoryview(self._arena)
        self._one = Replayer(program, view, names, buckets)
        self._many = Replayer(program, view, names, buckets, threads=fill_threads(count))

    def seconds(self, *, many: bool, kept: bool) -> float:
        """Of one fill; kept: as from a state dict, else as from a generator."""
        replayer = self._many if many else self._one
        replayer.begin()
        began = time.perf_counter()
        for name, tensor in self.state.items():
            replayer.feed(name, tensor, kept=kept)
        replayer.finish()
        return time.perf_counter() - began

    def clear(self) -> None:
        """Zero the arena."""
        self._arena[:] = bytes(self.nbytes)

    @property
    def bytes(self) -> bytes:
        """What the last fill left."""
        return self._arena[:]


def bound(usable: int) -> float | None:
    """Of the ratio, where there are cores to gain by; the highest number that is there counts."""
    return next((BOUNDS[least] for least in sorted(BOUNDS, reverse=True) if usable >= least), None)


def filling(nbytes: int, runs: int) -> list[Measure]:
    """State dict and generator, n threads over one; the first run of each touches pages and is not counted."""
    usable = cores.usable_cores()
    count = max(2, cores.derived(usable, 1))
    fills = Fills(nbytes, count)
    what = f"{format_bytes(fills.nbytes)} in tensors of 16 MiB"
    found = []
    for source, kept, most in (("a state dict", True, bound(usable)), ("a generator", False, None)):
        rows = [[fills.seconds(many=many, kept=kept) for many in (True, False)] for _ in range(runs + 1)][1:]
        many, one = (statistics.median(side) for side in zip(*rows, strict=True))
        how = f"{many:.3f} s over {one:.3f} s, {usable} cores, median of {runs} interleaved runs, {what}"
        ratio = statistics.median(n / o for n, o in rows)
        name = f"filling from {source}, {count} threads over one"
        found.append(Measure(name=name, value=ratio, unit="1", bound=most, better="lower", how=how))
    return found
