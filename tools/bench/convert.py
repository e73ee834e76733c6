"""Conversion: compiled copies against memcpy and ``load_weights``, threads, digests, and filling beside writing.

Every line is a ratio of neighbours in time, median of interleaved runs. Copying, digesting and writing compete for
processors, so the last line also counts the processor seconds of all processes that take part.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import importlib
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import structlog
import torch

from tools.bench.filling import TENSOR, filling
from tools.bench.processor import TICKS, processor_seconds
from tools.bench.transfer import memory
from tools.bench.workers import Workers
from tools.report.writing import write
from weightsync.arena import Arena
from weightsync.buckets import bucket_size, cut
from weightsync.convert.replay import Replayer
from weightsync.cores import usable_cores
from weightsync.measures import Measure
from weightsync.testing.programs import plain_program
from weightsync.units import format_bytes, parse_bytes
from weightsync_agent.transfer.settings import TransferSettings

COPIES, MOE, DIGEST, PIPELINE = 0.6, 5.0, 1.15, 1.25
ROOT = Path(__file__).resolve().parents[2]


class Contiguous:
    """A model whose parameters are checkpoint tensors as they are: what a replay costs when nothing is sliced."""

    def __init__(self, nbytes: int) -> None:
        names = [f"t{n}" for n in range(max(1, nbytes // (2 * TENSOR[0] * TENSOR[1])))]
        self.program = plain_program(dict.fromkeys(names, ("bfloat16", TENSOR)))
        self.nbytes = self.program.layout.nbytes
        self._arena = mmap.mmap(-1, self.nbytes)
        self._plain = torch.full((self.nbytes,), 3, dtype=torch.uint8)
        # Memory of its own for each: one tensor again and again would be read from the cache.
        self._state = {name: torch.full(TENSOR, 1.5, dtype=torch.bfloat16) for name in names}
        view = memoryview(self._arena)
        buckets = cut([(0, self.nbytes)], bucket_size(self.nbytes, 512 << 20))
        self._bare = Replayer(self.program, view, names)
        self._digesting = Replayer(self.program, view, names, buckets)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._arena))

    @property
    def bytes(self) -> bytes:
        """What the last way left."""
        return self._arena[:]

    def memcpy(self) -> float:
        """Processor seconds of one memcpy of as many bytes."""
        return self._timed(lambda: ctypes.memmove(self._address, self._plain.data_ptr(), self.nbytes))

    def copies(self) -> float:
        """Of the compiled copies."""
        return self._timed(lambda: self._replay(self._bare))

    def digested(self) -> float:
        """Of the compiled copies with the digest of each bucket taken behind them."""
        return self._timed(lambda: self._replay(self._digesting))

    def _replay(self, replayer: Replayer) -> None:
        replayer.begin()
        for name, tensor in self._state.items():
            replayer.feed(name, tensor)
        replayer.finish()

    def _timed(self, run: Callable[[], object]) -> float:
        began = time.thread_time()
        run()
        return time.thread_time() - began


def contiguous(nbytes: int, count: int) -> list[Measure]:
    """Compiled copies against memcpy, in one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = Contiguous(nbytes)
    rows = [(model.memcpy(), model.copies(), model.digested()) for _ in range(count + 1)][1:]
    torch.set_num_threads(threads)
    how = f"one thread, median of {count} interleaved runs, {format_bytes(model.nbytes)} in tensors of 16 MiB"
    return [
        Measure(name="memcpy over compiled copies", value=statistics.median(m / c for m, c, _ in rows), unit="1",
                bound=COPIES, better="higher", how=f"processor seconds; {how}"),
        Measure(name="memcpy over compiled copies with digests", value=statistics.median(m / d for m, _, d in rows),
                unit="1", better="higher", how=f"processor seconds, each bucket's digest taken on the way; {how}"),
        Measure(name="compiled copies", value=model.nbytes / statistics.median(c for _, c, _ in rows) / 1e9,
                unit="GB/s", better="higher", how=f"per processor second; {how}"),
    ]  # fmt: skip


async def pairs(
    one: Callable[[], Awaitable[float]], other: Callable[[], Awaitable[float]], count: int
) -> list[float]:
    """Ratios of ``one`` over ``other``; the first pair is not counted, and the order is swapped each time."""
    ratios = []
    for number in range(count + 1):
        if number % 2:
            second = await other()
            ratios.append(await one() / second)
        else:
            first = await one()
            ratios.append(first / await other())
    return ratios[1:]


async def publishes(nbytes: int, count: int, settings: TransferSettings) -> list[Measure]:
    """Between two transfer workers: digests on and off; pipelined against the longest of its parts."""
    async with AsyncExitStack() as stack:
        workers = await _workers(stack, nbytes, settings)
        stack.push_async_callback(workers.close)
        digests = await pairs(
            partial(_processors, workers.publish),
            partial(_processors, partial(workers.publish, digests=False)),
            count,
        )
        times = await pairs(workers.publish, partial(workers.publish, digests=False), count)
        spare = usable_cores() > 2  # digests run beside the wire: what they take is no longer what they cost
        without = [await _processors(partial(workers.publish, digests=False)) for _ in range(3)]
        least = [1 + sum(workers.digest_seconds()) / seconds for seconds in without]
        shares, bounds = [], list[tuple[float, float, float]]()
        for _ in range(count):
            fill, wire = await workers.fill(), await workers.write()
            before = processor_seconds()
            elapsed = await workers.publish()
            processors = (processor_seconds() - before) / len(os.sched_getaffinity(0))
            bounds.append((fill, wire, processors))
            shares.append(elapsed / max(fill, wire, processors))
        fill, wire, processors = (statistics.median(part) for part in zip(*bounds, strict=True))
        how = f"median of {count} interleaved runs, {format_bytes(nbytes)}, loopback TCP between two transfer workers"
        longest = f"fill {fill:.3f} s, write {wire:.3f} s, processor seconds over processors {processors:.3f} s"
        return [
            Measure(name="digests on over off", value=statistics.median(times), unit="1",
                    bound=DIGEST if spare else None, better="lower",
                    how=f"elapsed, digests at both ends over none at either; {how}"),
            Measure(name="digests on over off, processor seconds", value=statistics.median(digests), unit="1",
                    bound=None if spare else DIGEST, better="lower", how=f"of all processes; {how}"),
            Measure(name="digests on over off, processor seconds, at least", value=statistics.median(least),
                    unit="1", better="lower",
                    how="a publish without digests, and xxh3 once in the core's cache and once over memory"),
            Measure(name="pipelined over the longest part", value=statistics.median(shares), unit="1", bound=PIPELINE,
                    better="lower", how=f"publish to verified over max({longest}); {how}"),
        ]  # fmt: skip


async def _processors(publish: Callable[[], Awaitable[float]]) -> float:
    """Processor seconds of a publish, at least one tick: other work on the machine stretches elapsed time, and these
    hardly.
    """
    before = processor_seconds()
    await publish()
    return max(processor_seconds() - before, 1 / TICKS)


async def _workers(stack: AsyncExitStack, nbytes: int, settings: TransferSettings) -> Workers:
    tensor = stack.enter_context(mmap.mmap(-1, nbytes))
    for at in range(0, nbytes, 1 << 20):
        tensor[at : at + (1 << 20)] = os.urandom(min(1 << 20, nbytes - at))
    folder = stack.enter_context(memory())
    source, target = (
        Arena.create(folder / n, layout="0" * 32, program="0" * 32, nbytes=nbytes) for n in ("source", "target")
    )
    for arena in (source, target):
        arena.prefault([(0, nbytes)])
    buckets = cut([(0, nbytes)], bucket_size(nbytes, 512 << 20))
    return await Workers.start(settings, memoryview(tensor), source, target, buckets)


def experts(count: int) -> list[Measure]:
    """A layer of 128 experts: compiled copies against ``load_weights`` tensor by tensor, in SGLang's environment.

    The bound is on a rank of four, as such a model is served; a whole layer on one rank is bytes above all.
    """
    packages: Path = importlib.import_module("tools.setup.sglang_env").prepare(ROOT)
    return [*_experts(packages, count, 4, MOE), *_experts(packages, count, 1, None)]


def _experts(packages: Path, count: int, tp: int, bound: float | None) -> list[Measure]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "sdk"), str(packages)])
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.experts", "--runs", str(count), "--tp", str(tp)], cwd=ROOT,
        stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    ratios = [loading / replay for loading, replay in found["seconds"]]
    how = f"{found['what']}, median of {len(ratios)} interleaved runs, {format_bytes(found['nbytes'])}"
    return [
        Measure(name=f"load_weights tensor by tensor over compiled copies, tp {tp}", value=statistics.median(ratios),
                unit="1", bound=bound, better="higher", how=f"processor seconds; {how}"),
    ]  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Write build/bench/convert.json; exit status 1 where a bound is broken."""
    parser = argparse.ArgumentParser(prog="bench convert", description=__doc__)
    parser.add_argument("--bytes", type=parse_bytes, default=1 << 30, help="size of the model (1Gi)")
    parser.add_argument("--runs", type=int, default=9, help="interleaved runs of each line (9)")
    parser.add_argument("--without-sglang", action="store_true", help="leave out the lines of 128 experts")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    found = [*contiguous(options.bytes, options.runs), *filling(options.bytes, options.runs)]
    if not options.without_sglang:
        found += experts(options.runs)
    found += asyncio.run(publishes(options.bytes, options.runs, TransferSettings()))
    for measure in found:
        verdict = "" if measure.holds else "BROKEN "
        sys.stderr.write(f"{verdict}{measure.name}: {measure.value:.3g} {measure.unit}; {measure.how}\n")
    write("bench", "convert", found)
    return 0 if all(measure.holds for measure in found) else 1
