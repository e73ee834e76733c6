"""Pauses, flushes and versions, with requests in flight and without."""

import asyncio

from tests.contract.api import Json
from tests.contract.table import CASES, Case, case
from tests.contract.world import World
from weightsync_agent.engines.base import PauseMode

PAUSES: dict[str, PauseMode] = {"abort": "Abort", "retract": "Retract", "in_place": "InPlace"}


@case("pause and continue without requests")
async def _idle_pauses(world: World) -> Json:
    found: Json = {}
    for mode in PAUSES:
        paused = await world.api.post("/pause_generation", {"mode": mode})
        again = await world.api.post("/pause_generation", {"mode": mode})
        resumed = await world.api.post("/continue_generation", {"torch_empty_cache": False})
        found[mode] = [paused.note("status", "message"), again.status, resumed.note("status", "message")]
    found["continue on a serving engine"] = (await world.api.post("/continue_generation", {})).status
    return found


def _pause_case(mode: str) -> Case:
    async def run(world: World) -> Json:
        async with world.flying() as flights:
            running = await world.api.post("/flush_cache", {})
            paused = await world.api.post("/pause_generation", {"mode": mode})
            version = await world.api.post(
                "/update_weight_version", {"new_version": "while-paused", "abort_all_requests": False}
            )
            landed = flights.landed
            late = asyncio.create_task(world.generate([3, 3], 4))
            await asyncio.sleep(world.settle)
            found = {
                "flush while running": running.note(),
                "pause": paused.status,
                "version while paused": [version.note("success", "message", "new_version"), await world.version()],
                "flush while paused": (await world.api.post("/flush_cache", {})).note(),
                "answered by the pause": landed,
                "answered during the pause": flights.landed - landed,
                "a late request waits": not late.done(),
            }
            resumed = await world.api.post("/continue_generation", {"torch_empty_cache": False})
            outcomes = await flights.outcomes()
            answered = await late
            found |= {
                "continue": resumed.status,
                "in flight": outcomes,
                "late": [
                    answered.status,
                    answered.at("meta_info.finish_reason.type"),
                    len(answered.body["output_ids"]),
                ],
                "version in a late answer": answered.at("meta_info.weight_version"),
            }
        await world.engine.set_version("default")
        await world.idle()
        return found

    return run


for _mode in PAUSES:
    CASES[f"pause {_mode} with requests in flight"] = _pause_case(_mode)


@case("the adapter's abort on an engine that is paused already")
async def _abort_paused(world: World) -> Json:
    found: Json = {}
    for first in ("in_place", "retract"):
        async with world.flying() as flights:
            await world.engine.pause(PAUSES[first])
            await world.engine.pause("Abort")
            outcomes = await flights.outcomes(30)
            await world.engine.flush(10)
            found[f"after {first}"] = {"in flight": outcomes, "flushed": True}
            await world.engine.resume()
        await world.idle()
    return found


@case("a version is set with requests in flight")
async def _version(world: World) -> Json:
    async with world.flying(2) as flights:
        seen = await world.api.post("/update_weight_version", {"new_version": "v-1", "abort_all_requests": False})
        found: Json = {"set": seen.note("success", "message", "new_version"), "named": await world.version()}
        found["in flight"] = await flights.outcomes()
    await world.engine.set_version("default")
    return found
