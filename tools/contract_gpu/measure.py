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
MODES: tuple[PauseMode, ...] = ("Retract", "Abort")  # idle, so that also 0.5.17 flushes after a retraction


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
    """All timings, in seconds; medians where there are many."""
    async with Api(url) as api, SGLangEngine(url, volume) as engine:
        world = World(api, engine, volume, before, after, long_tokens=1200)
        begin = time.perf_counter()
        await world.described()
        found: Json = {"describe": time.perf_counter() - begin}
        ref = await world.filled(after)
        replica = world.replica
        if replica is None:
            raise RuntimeError("no replica")
        (pinned,) = await engine.pin([ref])
        pure = pure_copy(replica)
        found["pure_copy"] = spread(pure)
        for mode in MODES:
            runs = [await commit(world, replica.version, mode) for _ in range(REPEATS)]
            totals = [run["total"] for run in runs]
            found[f"idle_{mode}"] = {
                **spread(totals),
                "ratio": statistics.median(totals) / statistics.median(pure),
                "steps": {step: statistics.median(run[step] for run in runs) for step in runs[0]},
            }
        async with engine.standstill():
            (back,) = await engine.readback([ref])
        tokens = await world.tokens()
        found |= await busy(world, replica.version)
        begin = time.perf_counter()
        await world.from_disk(after)
        found["from_disk"] = time.perf_counter() - begin
        return {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "bytes": replica.layout.nbytes,
            "parameters": len(replica.layout.parameters),
            "pin": pinned.seconds,
            "readback": back.seconds,
            "readback_equal": back.equal,
            "tokens_equal_those_from_disk": tokens == await world.tokens(),
            **found,
        }


async def busy(world: World, version: Version) -> Json:
    """With four requests in flight: commits that abort them, SGLang's own abort pause, a standstill."""
    commits, own = [], []
    for _ in range(3):
        async with world.flying():
            commits.append(await commit(world, version, "Abort"))
        await world.idle()
        async with world.flying():
            begin = time.perf_counter()
            await world.api.post("/pause_generation", {"mode": "abort"})
            own.append(time.perf_counter() - begin)
        await world.idle()
    async with world.flying() as flights:
        begin = time.perf_counter()
        async with world.engine.standstill():
            await world.engine.describe([0])
        standstill, landed = time.perf_counter() - begin, flights.landed
    await world.idle()
    return {
        "four_requests_Abort": {
            **spread([run["total"] for run in commits]),
            "steps": {step: statistics.median(run[step] for run in commits) for step in commits[0]},
        },
        "four_requests_own_abort_pause_alone": spread(own),
        "four_requests_standstill_with_describe": standstill,
        "requests_ended_by_the_standstill": landed,
    }


def spread(seconds: list[float]) -> Json:
    """Median, least and most."""
    return {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}


def run(url: str, volume: Path, before: Path, after: Path) -> Json:
    """measure(), from plain code."""
    return asyncio.run(measure(url, volume, before, after))
