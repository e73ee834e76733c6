"""The agent's adapter and an engine that is asked all the time, as a rollout is."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from weightsync_agent.engines.sglang import SGLangEngine

CLIENTS = 6


async def asking(engine: Any) -> None:
    """One client: the next question follows each answer, an aborted one too."""
    while True:
        await engine.generate([7, 5, 3], 64)


@pytest.mark.parametrize("act_as", ["0.5.17", "0.5.23"])
async def test_a_busy_engine_is_emptied_by_an_abort_pause(start: Any, tmp_path: Path, act_as: str) -> None:
    """No request is in the scheduler and no position in its cache: nothing after the pause has to flush."""
    engine = await start("--act-as", act_as)
    clients = [asyncio.create_task(asking(engine)) for _ in range(CLIENTS)]
    async with SGLangEngine(str(engine.client.make_url("")).rstrip("/"), tmp_path) as adapter:
        try:
            for _ in range(5):
                await adapter.resume()
                await engine.until(lambda: engine.scheduler.running_requests == CLIENTS)
                await adapter.pause("Abort")
                state = await engine.front.on_model(engine.scheduler.state)
                assert state["paused"]
                assert (state["running_requests"], state["waiting_requests"], state["cached_positions"]) == (0, 0, 0)
        finally:
            for client in clients:
                client.cancel()
            await adapter.resume()
            await asyncio.gather(*clients, return_exceptions=True)
