"""A start of a worker that its caller gives up leaves no process, whenever that happens."""

import asyncio
from typing import Any

import pytest

from weightsync_agent.transfer.child import Child
from weightsync_agent.transfer.settings import TransferSettings
from weightsync_agent.transfer.supervisor import TransferWorker


class Process:
    """Stands for a worker's process."""

    def __init__(self) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True

    async def ended(self) -> None:
        assert self.killed, "it was waited for, and nobody ended it"


@pytest.mark.parametrize("ready", [True, False], ids=["in the moment in which it got ready", "before it was ready"])
async def test_a_worker_whose_caller_gives_up_is_ended(ready: bool) -> None:
    """Nobody would know of it."""
    worker, process = TransferWorker("w", TransferSettings()), Process()
    worker._child = process  # type: ignore[assignment]
    waiting = asyncio.create_task(worker._await_ready())
    await asyncio.sleep(0)
    if ready:
        worker._ready.set_result(15000)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert process.killed


async def test_a_process_that_was_spawned_for_nobody_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled between the process's start and the pipe to it."""
    spawned: list[asyncio.subprocess.Process] = []
    spawn = asyncio.create_subprocess_exec
    reached = asyncio.Event()

    async def noted(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        spawned.append(await spawn("sleep", "60", stderr=asyncio.subprocess.PIPE))
        return spawned[0]

    async def never(**_: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    monkeypatch.setattr(asyncio, "open_connection", never)
    starting = asyncio.create_task(Child.spawn("w", str, {}, lambda message: None))
    await reached.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert spawned[0].returncode is not None
