"""What ends or wedges an engine: why the adapter never does it. Each needs an engine of its own."""

import asyncio
from collections.abc import Awaitable

import aiohttp

from tests.contract.api import Json, Seen
from tests.contract.table import FATAL, case
from tests.contract.world import World
from weightsync_agent.engines.payload import hook_call

PATIENCE = 8.0  # seconds: an abort pause looks once a second whether it is done


@case("an abort pause on top of one in place", FATAL)
async def _wedged(world: World) -> Json:
    async with world.flying():
        await world.engine.pause("InPlace")
        return {
            "pause abort": await _answer(world.api.post("/pause_generation", {"mode": "abort"}, seconds=PATIENCE)),
            "continue": await _answer(world.api.post("/continue_generation", {}, seconds=PATIENCE)),
            "model_info": await _answer(world.api.get("/model_info", seconds=PATIENCE)),
        }


@case("a loader that raises", FATAL)
async def _raises(world: World) -> Json:
    body = {**hook_call(1), "load_format": "raising_loader.load"}
    call = await _answer(world.api.post("/update_weights_from_tensor", body, seconds=60))
    alive = "alive"
    for _ in range(60):
        alive = await _answer(world.api.get("/model_info", seconds=PATIENCE))
        if alive == "gone":
            break
        await asyncio.sleep(0.5)
    return {"the call": call, "the server": alive}


async def _answer(call: Awaitable[Seen]) -> str:
    try:
        return str((await call).status)
    except TimeoutError:
        return "no answer"
    except aiohttp.ClientError:
        return "gone"
