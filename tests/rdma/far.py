"""The other guest: does what the first one asks of it over the wire.

`python -m tests.rdma.far` serves there, until `end` is asked for.

Requests and answers are JSON objects, one a line. Nothing is judged here.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.integration.transfer.workers import MIB, Bench, stop
from tests.rdma.here import GuestWorld
from weightsync.arena import Arena
from weightsync.digests import digest_bytes
from weightsync.wire.v1 import Region
from weightsync_agent.transfer.settings import TransferSettings, Verbs
from weightsync_agent.transfer.supervisor import TransferWorker
from weightsync_cli.checks import writes

PORT = 7000
LINE = 1 << 24
ADDRESS = "10.77.0.2"
ANSWERING = 600.0  # an engine's pod may be starting
STARTING = 240.0  # seconds until a guest beside ours listens
# Workers over RDMA from the start; a dead peer's device is told from a slow one's sooner.
AGENTS = {"WEIGHTSYNC_TRANSPORT": "rdma", "WEIGHTSYNC_STALL_SECONDS": "30"}
WORKER = b"weightsync_agent.transfer.worker"


def verbs(gid_index: int | None = None) -> TransferSettings:
    """A worker's settings over the guest's device, small and patient: everything is emulated."""
    return TransferSettings(
        transport="rdma",
        verbs=Verbs(devices=(os.environ["GUEST_DEVICE"],), gid_index=gid_index),
        piece_bytes=MIB // 2,
        peer_bytes=2 * MIB,
        start_seconds=120,
        contact_seconds=30,
    )


class Far:
    """What the other guest has: targets by name."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._targets: dict[str, tuple[TransferWorker, Arena]] = {}
        self._world: GuestWorld | None = None
        self._listening: asyncio.Task[None] | None = None
        self.over = asyncio.Event()

    async def target(self, name: str, nbytes: int, gid_index: int | None = None) -> dict[str, Any]:
        """A worker with an empty arena; the arena's region."""
        settings = replace(verbs(gid_index))
        worker, arena, region = await self._bench.target(name, nbytes, settings)
        self._targets[name] = (worker, arena)
        return region.model_dump()

    async def digest(self, name: str) -> str:
        """Of what is in a target's arena now."""
        return digest_bytes(self._targets[name][1].view)

    async def kill(self, name: str) -> None:
        """SIGKILL of a target's worker; returns when it is over."""
        worker = self._targets[name][0]
        worker.kill()
        await worker.dead

    async def stop(self, name: str) -> None:
        """SIGSTOP of a target's worker."""
        stop(self._targets[name][0])

    async def later(self, command: str) -> None:
        """Run a shell's command beside: it may cut the wire that this answer takes."""
        subprocess.Popen(["bash", "-c", f"sleep 0.3; {command}"])  # noqa: ASYNC220 - not waited for

    async def shell(self, command: str) -> None:
        """Run a shell's command to its end."""
        await asyncio.to_thread(subprocess.run, ["bash", "-c", command], check=True)

    async def clear(self) -> None:
        """End all targets, and give their memory back."""
        await self._bench.close()
        for _, arena in self._targets.values():
            arena.path.unlink()
        self._targets.clear()
        self._bench = Bench(self._bench.folder, self._bench.host, self._bench.settings)

    async def kill_workers(self) -> int:
        """SIGKILL of the transfer workers of the engine's agent; how many there were."""
        pods = self._world.pods.values() if self._world is not None else ()
        workers = _workers({pod.agent.pid for pod in pods})
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        return len(workers)

    async def listen(self) -> int:
        """Be the target of preflight's writes. The port."""
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        place = writes.Place(os.environ["GUEST_ADDRESS"], verbs(), self._bench.folder)
        self._listening = asyncio.create_task(writes.listen(place, 0, ready.set_result))
        return await ready

    async def engine(self, name: str, secret: str, model: str) -> dict[str, int]:
        """An engine's pod: its agent, and the reference engine over a checkpoint. The ports of both."""
        own = Path("/dev/shm/model")  # the shared folder cannot be mapped
        await asyncio.to_thread(shutil.copytree, model, own)
        self._world = GuestWorld(secret, **AGENTS)
        pod = await asyncio.to_thread(self._world.engine, name, own)
        return {"agent": pod.port, "engine": pod.engine_port}

    async def tails(self, lines: int) -> str:
        """The last lines of the logs of the engine's pod."""
        return self._world.tails(lines) if self._world is not None else ""

    async def end(self) -> None:
        """Serve no more."""
        if self._listening is not None:
            self._listening.cancel()
        if self._world is not None:
            await asyncio.to_thread(self._world.close)
        self.over.set()


def _workers(parents: set[int]) -> list[int]:
    found = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if WORKER in path.read_bytes().split(b"\0")]
    return [int(place.name) for place in found if _parent(place) in parents]


def _parent(place: Path) -> int:
    return int((place / "stat").read_text().rpartition(")")[2].split()[1])


async def _answer(far: Far, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.CancelledError, ConnectionError):  # all is over, or whoever asked is
        while line := await reader.readline():
            asked = json.loads(line)
            try:
                answer = {"value": await getattr(far, asked.pop("call"))(**asked)}
            except Exception as error:  # noqa: BLE001 - told to whoever asked, who fails by it
                answer = {"error": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
    writer.close()


async def serve(folder: Path) -> None:
    """Until `end` is asked for."""
    bench = Bench(folder, os.environ["GUEST_ADDRESS"], verbs())
    far = Far(bench)
    server = await asyncio.start_server(lambda reader, writer: _answer(far, reader, writer), port=PORT, limit=LINE)
    async with server:
        await far.over.wait()
    await far.clear()


class Link:
    """The first guest's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls) -> "Link":
        """Connect, once the other guest listens."""
        async with asyncio.timeout(STARTING):
            while True:
                try:
                    return cls(*await asyncio.open_connection(ADDRESS, PORT, limit=LINE))
                except OSError:
                    await asyncio.sleep(0.5)

    async def ask(self, call: str, **arguments: object) -> Any:
        """The answer; RuntimeError with the other side's words."""
        self._writer.write(json.dumps({"call": call, **arguments}).encode() + b"\n")
        async with asyncio.timeout(ANSWERING):
            answer = json.loads(await self._reader.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]

    async def target(self, name: str, nbytes: int, **more: object) -> Region:
        """A worker over there, with an empty arena."""
        return Region.model_validate(await self.ask("target", name=name, nbytes=nbytes, **more))

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


if __name__ == "__main__":
    place = Path("/dev/shm/far")
    place.mkdir()
    asyncio.run(serve(place))
