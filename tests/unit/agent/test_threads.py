"""Work that is not cut short by a cancellation."""

import asyncio
import threading

import pytest

from weightsync_agent.threads import in_thread


@pytest.mark.parametrize("times", [1, 2], ids=["cancelled once", "cancelled again while it waits"])
async def test_a_cancelled_caller_goes_on_only_once_the_thread_has_ended(times: int) -> None:
    """A look that is ended, and then the agent: its arena is closed only when no thread works on it any more."""
    begun, go_on = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        begun.set()
        assert go_on.wait(10)
        ended.append(True)

    async def caller() -> None:
        try:
            await in_thread(work)
        finally:
            ended.append(False)

    task = asyncio.create_task(caller())
    await asyncio.to_thread(begun.wait, 10)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
    assert ended == []
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True, False]
