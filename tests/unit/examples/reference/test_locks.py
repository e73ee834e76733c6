"""Readers share, a writer is alone and comes to its turn."""

import asyncio

import pytest

from reference.locks import ReadersWriterLock


async def settle() -> None:
    """Let every task run as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def hold(lock: ReadersWriterLock, kind: str, log: list[str], name: str, until: asyncio.Event) -> None:
    """Hold the lock until told to let go."""
    async with lock.reading() if kind == "read" else lock.writing():
        log.append(name)
        await until.wait()


async def test_a_writer_waits_for_readers_and_keeps_new_ones_out() -> None:
    """Reader, writer, reader: in that order, although the second reader could share with the first."""
    lock, log, go = ReadersWriterLock(), list[str](), [asyncio.Event() for _ in range(3)]
    async with asyncio.TaskGroup() as group:
        for name, kind, until in zip(("r1", "w", "r2"), ("read", "write", "read"), go, strict=True):
            group.create_task(hold(lock, kind, log, name, until))
            await settle()
        assert log == ["r1"]
        assert not await lock.no_readers(0)
        go[0].set()
        await settle()
        assert log == ["r1", "w"]
        go[1].set()
        await settle()
        assert log == ["r1", "w", "r2"]
        go[2].set()
    assert await lock.no_readers(0)


@pytest.mark.parametrize("kind", ["read", "write"])
async def test_a_cancelled_holder_lets_go(kind: str) -> None:
    """So does one that was cancelled while it waited."""
    lock, log, never = ReadersWriterLock(), list[str](), asyncio.Event()
    holder = asyncio.create_task(hold(lock, kind, log, "holder", never))
    await settle()
    waiter = asyncio.create_task(hold(lock, "write", log, "waiter", never))
    await settle()
    for task in (waiter, holder):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with lock.writing():
        pass
    async with lock.reading():
        assert lock.readers == 1
