"""publish -> verified of one version to one target, against raw Mooncake moving the same bytes.

Pairs of both, interleaved, since absolute speeds drift on shared machines; the bound is on the median of the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import structlog

from tools.bench.agents import Agents
from tools.bench.raw import Raw
from tools.bench.workers import Workers
from tools.report.writing import write
from tools.world.world import World
from weightsync.arena import Arena
from weightsync.buckets import bucket_size, cut
from weightsync.measures import Measure
from weightsync.units import format_bytes, parse_bytes
from weightsync_agent.transfer.settings import TransferSettings

BOUND = 0.75
Publish = Callable[[], Awaitable[float]]  # one version, in seconds


@contextmanager
def memory() -> Iterator[Path]:
    """A folder in shared memory, gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="weightsync-bench-", dir="/dev/shm"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


async def pairs(raw: Publish, ours: Publish, count: int) -> list[tuple[float, float]]:
    """Seconds of both, interleaved, the order swapped each time; one pair before them is not counted (first contact,
    first touch of pages)."""
    measured = []
    for number in range(count + 1):
        if number % 2:
            first = await raw()
            pair = (first, await ours())
        else:
            second = await ours()
            pair = (await raw(), second)
        sys.stderr.write(f"pair {number}: raw {pair[0]:.3f} s, ours {pair[1]:.3f} s, ratio {pair[0] / pair[1]:.2f}\n")
        measured.append(pair)
    return measured[1:]


def measures(found: list[tuple[float, float]], nbytes: int, regions: int, how: str) -> list[Measure]:
    """The report of the pairs."""
    raw, ours = (statistics.median(side) for side in zip(*found, strict=True))
    ratio = statistics.median(one / other for one, other in found)
    size = format_bytes(nbytes)
    interleaved = f"median of {len(found)} interleaved pairs, {size}, loopback TCP"
    return [
        Measure(name="raw over ours", value=ratio, unit="1", bound=BOUND, better="higher",
                how=f"seconds of raw Mooncake over seconds of {how}; {interleaved}"),
        Measure(name="ours", value=nbytes / ours / 1e9, unit="GB/s", better="higher", how=f"{how}; {interleaved}"),
        Measure(name="raw", value=nbytes / raw / 1e9, unit="GB/s", better="higher",
                how=f"plain Mooncake, submit and sleep-poll, same arenas and MC_*; {interleaved}"),
        Measure(name="regions per arena", value=regions, unit="1", bound=1, better="lower",
                how="regions in the target's handshake descriptor"),
    ]  # fmt: skip


async def run(nbytes: int, count: int, settings: TransferSettings, *, agents: bool) -> list[Measure]:
    """All of it. agents: our side is real agents, else two bare workers (what agents can reach at best)."""
    async with AsyncExitStack() as stack:
        ours: Agents | Workers
        if agents:
            ours = await Agents.start(
                stack.enter_context(World(agent_environment={"WEIGHTSYNC_PROBE_SECONDS": "1"})), nbytes
            )
            nbytes = ours.nbytes
            how = f"publish() of {ours.parameters} tensors to verified, by real agents from a plan file"
        else:
            ours = await _workers(stack, nbytes, settings)
            how = "fill, digest, write, verify between two workers"
        stack.push_async_callback(ours.close)
        raw = await _raw(stack, nbytes, settings)
        found = await pairs(raw.publish, ours.publish, count)
        return measures(found, nbytes, await ours.regions(), how)


def _arenas(stack: AsyncExitStack, nbytes: int) -> tuple[Arena, Arena]:
    folder = stack.enter_context(memory())
    source, target = (
        Arena.create(folder / n, layout="0" * 32, program="0" * 32, nbytes=nbytes) for n in ("source", "target")
    )
    for arena in (source, target):
        arena.prefault([(0, nbytes)])
    return source, target


async def _raw(stack: AsyncExitStack, nbytes: int, settings: TransferSettings) -> Raw:
    source, target = _arenas(stack, nbytes)
    raw = await Raw.start(settings, source.path, target.path, nbytes)
    stack.push_async_callback(raw.close)
    return raw


async def _workers(stack: AsyncExitStack, nbytes: int, settings: TransferSettings) -> Workers:
    tensor = stack.enter_context(mmap.mmap(-1, nbytes))
    for at in range(0, nbytes, 1 << 20):
        tensor[at : at + (1 << 20)] = os.urandom(min(1 << 20, nbytes - at))
    source, target = _arenas(stack, nbytes)
    buckets = cut([(0, nbytes)], bucket_size(nbytes, 512 << 20))
    return await Workers.start(settings, memoryview(tensor), source, target, buckets)


def main(arguments: list[str]) -> int:
    """Write build/bench/transfer.json; exit status 1 where the bound is broken."""
    parser = argparse.ArgumentParser(prog="bench transfer", description=__doc__)
    parser.add_argument("--bytes", type=parse_bytes, default=1 << 30, help="size of the version (1Gi)")
    parser.add_argument("--pairs", type=int, default=15, help="interleaved pairs (15)")
    parser.add_argument("--workers", action="store_true", help="our side without agents: two bare workers")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    settings = TransferSettings()
    found = asyncio.run(run(options.bytes, options.pairs, settings, agents=not options.workers))
    conditions: dict[str, str | int | float] = {
        **settings.environment(),
        "pieceBytes": settings.piece_bytes,
        "pollSeconds": settings.poll_seconds,
    }
    path = write("bench", "transfer-workers" if options.workers else "transfer", found, conditions=conditions)
    sys.stderr.write(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path.name}\n")
    return 0 if all(measure.holds for measure in found) else 1
