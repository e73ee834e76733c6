"""Wires an agent, starts it, stops it. Nobody else does."""

import asyncio
import contextlib

from weightsync_agent.base import Common
from weightsync_agent.engine_agent import EngineAgent
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import Counters
from weightsync_agent.peers.server import HttpServer
from weightsync_agent.trainer_agent import TrainerAgent


async def serve(common: Common, agent: EngineAgent | TrainerAgent, stop: asyncio.Event) -> None:
    """Run one agent until ``stop`` is set; a task of it that fails ends the agent with that error."""
    common.volume.prepare()
    await common.client.start()
    await common.own_pod.start()
    server = HttpServer([*common.routes(), *agent.routes()])
    await server.listen(common.settings.bind, common.settings.port)
    running = asyncio.create_task(agent.run())
    stopping = asyncio.create_task(stop.wait())
    common.ready = True
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        common.ready = False
        for task in (running, stopping):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await agent.close()
        await server.close()
        await common.own_pod.stop()
        await common.client.close()


def next_term(counters: StateFile[Counters]) -> int:
    """The start count of this agent, raised and persisted: the term where there is no cluster to give one."""
    before = counters.read() or Counters()
    after = Counters(starts=before.starts + 1)
    counters.write(after)
    return after.starts
