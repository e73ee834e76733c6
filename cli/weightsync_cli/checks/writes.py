"""Whether bytes move: between two workers of this pod, and to another pod that listens. Compared, and timed."""

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weightsync.arena import Arena
from weightsync.buckets import cut
from weightsync.digests import BucketDigest
from weightsync.errors import Refused, WeightSyncError
from weightsync.wire.v1 import Capabilities, Region
from weightsync_agent.transfer.capabilities import agree
from weightsync_agent.transfer.probe import split
from weightsync_agent.transfer.settings import TransferSettings
from weightsync_agent.transfer.supervisor import TransferWorker
from weightsync_cli.checks.finding import Finding

MIB = 1 << 20
LARGEST = 4096 * MIB  # that a listening pod makes room for
LINE = 1 << 16
STALL_SECONDS = 30.0
ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class Place:
    """Where this pod's workers are. folder: in shared memory."""

    host: str
    settings: TransferSettings
    folder: Path


@asynccontextmanager
async def _worker(place: Place, name: str, nbytes: int) -> AsyncIterator[tuple[TransferWorker, Arena, Region]]:
    """A worker with one arena; both are gone at the end."""
    worker = await TransferWorker.start(place.host, place.settings, name=name)
    path = place.folder / f"preflight-{os.getpid()}-{secrets.token_hex(4)}"
    arena = None
    try:
        arena = Arena.create(path, layout="0" * 32, program="0" * 32, nbytes=nbytes)
        arena.prefault([(0, nbytes)])
        yield worker, arena, await worker.attach(path)
    finally:
        # Killed, not asked: a peer may be writing, and nothing may land in memory that is given back.
        worker.kill()
        await worker.close()
        if arena is not None:
            arena.close()
        path.unlink(missing_ok=True)


def _fill(arena: Arena) -> None:
    block = os.urandom(MIB)
    for at in range(0, arena.header.nbytes, MIB):
        part = min(MIB, arena.header.nbytes - at)
        arena.view[at : at + part] = block[:part]
        arena.view[at : at + 8] = at.to_bytes(8, "little")  # no two blocks are alike


async def _write(worker: TransferWorker, arena: Arena, to: Region) -> float:
    """Seconds that the second of two writes took: the first one also makes the connection."""
    buckets = cut([(0, arena.header.nbytes)], 64 * MIB)
    for _ in range(2):
        began = time.monotonic()
        async for _ in worker.write(arena.path, buckets, to, stall_seconds=STALL_SECONDS):
            pass
    return time.monotonic() - began


async def _digests(worker: TransferWorker, arena: Arena) -> list[BucketDigest]:
    return await worker.digest(arena.path, cut([(0, arena.header.nbytes)], 64 * MIB))


def _told(check: str, place: Place, nbytes: int, seconds: float, equal: bool) -> Finding:
    said = f"{nbytes} bytes over {place.settings.transport} in {seconds:.3f} s, {nbytes / seconds / 1e6:.0f} MB/s"
    if not equal:
        return Finding(
            check, "failed", f"{said}: the bytes that arrived are others",
            "suspect the network's offloads and its hardware: no software here changes bytes",
        )  # fmt: skip
    return Finding(check, "ok", f"{said}, equal")


async def loopback(place: Place, nbytes: int) -> Finding:
    """From one worker of this pod to another."""
    check = "loopback write"
    try:
        async with (
            _worker(place, "preflight source", nbytes) as (source, ours, _),
            _worker(place, "preflight target", nbytes) as (target, theirs, region),
        ):
            _fill(ours)
            seconds = await _write(source, ours, region)
            equal = ours.view == theirs.view and await _digests(source, ours) == await _digests(target, theirs)
            return _told(check, place, nbytes, seconds, equal)
    except (WeightSyncError, OSError) as error:
        return Finding(check, "failed", str(error), _remedy(str(error), place))


async def to_peer(place: Place, peer: str, nbytes: int) -> Finding:
    """To a pod in which `weightsync preflight --listen` runs. peer: host:port of it."""
    check = f"write to {peer}"
    writer = None
    try:
        host, port = split(peer)
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, limit=LINE)
            writer.write(_line({"nbytes": nbytes}))
            answer = _read(await reader.readline())
        agree_with = Capabilities.model_validate(answer["capabilities"])
        region = Region.model_validate(answer["region"])
        async with _worker(place, "preflight source", nbytes) as (source, ours, _):
            agree(source.capabilities, agree_with)
            _fill(ours)
            seconds = await _write(source, ours, region)
            writer.write(_line({"written": True}))
            async with asyncio.timeout(ANSWER_SECONDS):
                digests = _read(await reader.readline())["digests"]
            equal = digests == [digest.digest for digest in await _digests(source, ours)]
            return _told(check, place, nbytes, seconds, equal)
    except TimeoutError:
        return Finding(check, "failed", f"no answer within {ANSWER_SECONDS:g} s", _remedy("Unreachable", place))
    except (WeightSyncError, OSError, ValueError, KeyError) as error:
        return Finding(check, "failed", f"{error}" or type(error).__name__, _remedy(str(error), place))
    finally:
        if writer is not None:
            writer.close()


async def listen(place: Place, port: int, ready: Callable[[int], None]) -> None:
    """Be written to, by whoever asks, until cancelled; each caller gets a worker and an arena of its own.

    When it returns all of them have ended.
    """
    callers: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _be_written(place, reader, writer)
        except (WeightSyncError, OSError, ValueError, KeyError) as error:
            writer.write(_line({"error": f"{error}" or type(error).__name__}))
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = asyncio.create_task(serve(reader, writer))
        callers.add(caller)
        caller.add_done_callback(callers.discard)

    server = await asyncio.start_server(accept, place.host, port, limit=LINE)
    async with server:
        ready(server.sockets[0].getsockname()[1])
        try:
            await server.serve_forever()
        finally:
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)


async def _be_written(place: Place, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    nbytes = int(_read(await reader.readline())["nbytes"])
    if not 1 <= nbytes <= LARGEST:
        raise Refused(f"{nbytes} bytes: 1 to {LARGEST} are taken", reason="TooLarge")
    async with _worker(place, "preflight target", nbytes) as (target, theirs, region):
        told = {"region": region.model_dump(), "capabilities": target.capabilities.model_dump()}
        writer.write(_line(told))
        if await reader.readline():
            digests = [digest.digest for digest in await _digests(target, theirs)]
            writer.write(_line({"digests": digests}))
            await writer.drain()


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _read(line: bytes) -> dict[str, Any]:
    """Raises Refused with the other side's words."""
    if not line:
        raise Refused("the other side closed the connection", reason="Unreachable")
    message: dict[str, Any] = json.loads(line)
    if "error" in message:
        raise Refused(f"the other side says: {message['error']}", reason="Refused")
    return message


def _remedy(why: str, place: Place) -> str:
    if "no room for" in why:
        return "write less (--size), or give the volume and the agent's container more memory"
    if "memlock" in why:
        return "raise the runtime's memlock limit, or run the agent's container as root with the capability IPC_LOCK"
    if "initialising Mooncake over rdma" in why:
        return "see the devices above; WEIGHTSYNC_TRANSPORT=tcp does without"
    if "transport is" in why:
        return "run both sides with the same --transport"
    if place.settings.transport == "rdma" and "failed a write" in why:
        return "the devices do not reach each other: GIDs of one kind on both sides, MTU, VLAN, firewall for UDP 4791"
    low, high = place.settings.min_port, place.settings.max_port
    return f"is a pod listening there, and may ports {low} to {high} and that one be reached (NetworkPolicy)?"
