"""Real workers over arenas in shared memory, and what is done to them: written with, stopped, killed."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from tools.world.processes import stands_still
from weightsync.arena import Arena
from weightsync.buckets import Bucket, cut
from weightsync.wire.v1 import Region
from weightsync_agent.transfer.supervisor import TransferSettings, TransferWorker

MIB = 1 << 20
SMALL = TransferSettings(piece_bytes=4 * MIB, peer_bytes=16 * MIB)


class Bench:
    """Starts workers at ``host`` and makes arenas; all of them end with the test."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", settings: TransferSettings = SMALL) -> None:
        self.folder = folder
        self.host = host
        self.settings = settings
        self.workers: list[TransferWorker] = []
        self.arenas: list[Arena] = []

    async def worker(self, name: str, settings: TransferSettings | None = None) -> TransferWorker:
        """A worker, with the bench's settings where none are given."""
        started = await TransferWorker.start(self.host, settings or self.settings, name=name)
        self.workers.append(started)
        return started

    def arena(self, name: str, nbytes: int, *, filled: bool = False) -> Arena:
        """An arena with pages; ``filled`` with random bytes, else zero."""
        made = Arena.create(self.folder / name, layout="0" * 32, program="0" * 32, nbytes=nbytes)
        made.prefault([(0, nbytes)])
        if filled:
            for at in range(0, nbytes, MIB):
                made.view[at : at + MIB] = os.urandom(min(MIB, nbytes - at))
        self.arenas.append(made)
        return made

    async def source(self, nbytes: int, settings: TransferSettings | None = None) -> tuple[TransferWorker, Arena]:
        """A worker with one filled arena."""
        started, arena = await self.worker("source", settings), self.arena("source", nbytes, filled=True)
        await started.attach(arena.path)
        return started, arena

    async def target(
        self, name: str, nbytes: int, settings: TransferSettings | None = None
    ) -> tuple[TransferWorker, Arena, Region]:
        """A worker with one empty arena."""
        started, arena = await self.worker(name, settings), self.arena(name, nbytes)
        return started, arena, await started.attach(arena.path)

    async def close(self) -> None:
        """Kill what lives, also what is stopped, and wait for it."""
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            await worker.close()
        for arena in self.arenas:
            arena.close()


def whole(arena: Arena, size: int = 8 * MIB) -> list[Bucket]:
    """The arena cut into buckets."""
    return cut([(0, arena.header.nbytes)], size)


async def write_all(worker: TransferWorker, arena: Arena, to: Region, *, stall: float = 20.0) -> list[Bucket]:
    """Write the whole arena; the buckets in the order of their ends."""
    return [bucket async for bucket in worker.write(arena.path, whole(arena), to, stall_seconds=stall)]


async def begun(worker: TransferWorker, arena: Arena, to: Region, *, stall: float = 20.0) -> "asyncio.Task[int]":
    """A write of the whole arena that has landed its first bucket; the task counts the others."""
    first = asyncio.Event()

    async def run() -> int:
        count = 0
        async for _ in worker.write(arena.path, whole(arena), to, stall_seconds=stall):
            first.set()
            count += 1
        return count

    task = asyncio.create_task(run())
    waiting = asyncio.create_task(first.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return task


def stop(worker: TransferWorker) -> None:
    """SIGSTOP: the process neither answers nor ends."""
    os.kill(worker.pid, signal.SIGSTOP)
    stands_still(worker.pid)


def go_on(worker: TransferWorker) -> None:
    """SIGCONT."""
    os.kill(worker.pid, signal.SIGCONT)


async def until(holds: Callable[[], bool] | Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    """Ask again and again, with a deadline."""
    async with asyncio.timeout(seconds):
        while True:
            found = holds()
            if found is True or (not isinstance(found, bool) and await found):
                return
            await asyncio.sleep(0.02)


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except FileNotFoundError:
        return False
