"""Tasks that should not end: a fault in one is heard of, by the log at once and by whoever waits for its work."""

import asyncio

import pytest
import structlog

from weightsync_agent import lasting


async def fault() -> None:
    """A bug."""
    await asyncio.sleep(0)
    raise KeyError("metadata")


async def for_ever() -> None:
    """Work that goes on."""
    await asyncio.Event().wait()


async def test_a_fault_is_logged_at_once_and_raised_at_the_end() -> None:
    """The line names the task's purpose and carries the trace."""
    with structlog.testing.capture_logs() as logs:
        task = lasting.begin("plans", fault())
        await asyncio.wait({task})
        await asyncio.sleep(0)
    assert [(entry["log_level"], entry["task"], type(entry["exc_info"])) for entry in logs] == [
        ("critical", "plans", KeyError)
    ]
    with pytest.raises(KeyError):
        await lasting.end([task])


async def test_an_orderly_end_is_silent() -> None:
    """Cancelled at the end: no line, no error."""
    with structlog.testing.capture_logs() as logs:
        tasks = [lasting.begin("a", for_ever()), lasting.begin("b", for_ever())]
        await asyncio.sleep(0)
        await lasting.end(tasks)
    assert logs == []
    assert all(task.cancelled() for task in tasks)


async def test_nobody_waits_for_work_whose_task_has_died() -> None:
    """The waiter gets the fault instead of waiting for ever; with living tasks it gets the result."""

    async def result() -> int:
        await asyncio.sleep(0)
        return 3

    living = lasting.begin("a", for_ever())
    assert await asyncio.wait_for(lasting.meanwhile(result(), [living]), 10) == 3
    with pytest.raises(KeyError):
        await asyncio.wait_for(lasting.meanwhile(asyncio.sleep(1000), [living, lasting.begin("b", fault())]), 10)
    await lasting.end([living])
