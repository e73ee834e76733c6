"""How long the hook stops an engine, against the copy that cannot be avoided.

The pure copy is the same sealed arena, pinned, copied as one block into GPU memory by this process.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import torch

from tests.contract.api import Api
from tests.contract.replica import Replica
from tests.contract.world import World
from weightsync.version import Version
from weightsync_agent.engines.base import PauseMode
from weightsync_agent.engines.sglang import SGLangEngine

Json = dict[str, Any]
REPEATS = 7


def pure_copy(replica: Replica) -> list[float]:
    """Seconds of plain copies of the payload from pinned memory to the device."""
    payload = torch.frombuffer(replica.arena.view, dtype=torch.uint8)
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    code = int(runtime.cudaHostRegister(payload.data_ptr(), payload.numel(), 0))
    if code:
        raise RuntimeError(f"cudaHostRegister: {code}")
    target = torch.empty_like(payload, device="cuda")
    seconds = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        target.copy_(payload, non_blocking=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    runtime.cudaHostUnregister(payload.data_ptr())
    return seconds[1:]


async def commit(world: World, version: Version, mode: PauseMode) -> dict[str, float]:
    """One commit by the adapter; seconds of each step and of all, and the hook's own figures."""
    steps: dict[str, float] = {}
    engine, ref = world.engine, world.ref()

    async def timed(name: str, call: Awaitable[Any]) -> Any:
        begin = time.perf_counter()
        result = await call
        steps[name] = time.perf_counter() - begin
        return result

    begin = time.perf_counter()
    await timed("pause", engine.pause(mode))
    await timed("torn", engine.set_version(f"torn:{version.name}"))
    (applied,) = await timed("apply", engine.apply([ref]))
    await timed("flush", engine.flush(60))
    await timed("version", engine.set_version(version.name))
    await timed("continue", engine.resume())
    steps["total"] = time.perf_counter() - begin
    steps["hook"], steps["copy"] = applied.seconds, applied.copy_seconds
    if not applied.pinned:
        raise RuntimeError(f"the arena is not pinned: {applied.unpinned}")
    return steps


async def measure(url: str, volume: Path, before: Path, after: Path) -> Json:
    """All timings, medians in seconds."""
    async with Api(url) as api, SGLangEngine(url, volume) as engine:
        world = World(api, engine, volume, before, after, long_tokens=1200)
        begin = time.perf_counter()
        await world.described()
        described = time.perf_counter() - begin
        ref = await world.filled(after)
        replica = world.replica
        if replica is None:
            raise RuntimeError("no replica")
        (pinned,) = await engine.pin([ref])
        pure = pure_copy(replica)
        idle = [await commit(world, replica.version, "Abort") for _ in range(REPEATS)]
        async with engine.standstill():
            (back,) = await engine.readback([ref])
        tokens = await world.tokens()
        async with world.flying() as flights:
            begin = time.perf_counter()
            async with engine.standstill():
                await engine.describe([0])
            standstill, landed = time.perf_counter() - begin, flights.landed
        await world.idle()
        busy = []
        for _ in range(3):
            async with world.flying():
                busy.append(await commit(world, replica.version, "Abort"))
            await world.idle()
        unknown = []
        for _ in range(3):
            async with world.flying():
                engine.forget()  # of an engine that may be paused, Abort retracts first and then aborts what waits
                await engine.capabilities()
                unknown.append(await commit(world, replica.version, "Abort"))
            await world.idle()
        begin = time.perf_counter()
        await world.from_disk(after)
        disk = time.perf_counter() - begin
        same = tokens == await world.tokens()
        nbytes = replica.layout.nbytes
    middle = {name: statistics.median(run[name] for run in idle) for name in idle[0]}
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "bytes": nbytes,
        "parameters": len(replica.layout.parameters),
        "pure_copy_seconds": {"median": statistics.median(pure), "min": min(pure), "max": max(pure)},
        "pause_to_continue_seconds": {
            "median": middle["total"], "min": min(r["total"] for r in idle), "max": max(r["total"] for r in idle),
        },
        "ratio": middle["total"] / statistics.median(pure),
        "steps_seconds": middle,
        "with_4_requests_aborted_seconds": [run["total"] for run in busy],
        "steps_with_4_requests_seconds": busy[0],
        "with_4_requests_retracted_then_aborted_seconds": [run["total"] for run in unknown],
        "steps_retracted_then_aborted_seconds": unknown[0],
        "describe_seconds": described,
        "standstill_with_4_requests_seconds": standstill,
        "requests_ended_by_standstill": landed,
        "pin_seconds": pinned.seconds,
        "readback_seconds": back.seconds,
        "readback_equal": back.equal,
        "from_disk_seconds": disk,
        "tokens_equal_those_from_disk": same,
    }  # fmt: skip


def run(url: str, volume: Path, before: Path, after: Path) -> Json:
    """measure(), from plain code."""
    return asyncio.run(measure(url, volume, before, after))
