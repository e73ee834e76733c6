"""Our side between two transfer workers, without agents: fill and digest, write, verify, bucket by bucket.

What a sync costs beyond the wire when nothing but the data path is there: the bound of what agents can reach.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Self

from weightsync import cores
from weightsync.arena import Arena
from weightsync.buckets import Bucket
from weightsync.convert.digesting import STEP, BucketDigester, step_of
from weightsync.convert.fill import BucketIndex
from weightsync.digests import digest_bytes
from weightsync.wire.v1 import Region
from weightsync_agent.transfer.probe import probe
from weightsync_agent.transfer.supervisor import TransferSettings, TransferWorker


class Unequal(Exception):
    """A bucket's digest at the target is not the source's."""


class Workers:
    """Two workers over the two arenas; publish() is one version from ``tensor`` to verified, filled by as many
    threads as a Publisher takes here."""

    def __init__(
        self,
        tensor: memoryview,
        arenas: tuple[Arena, Arena],
        workers: tuple[TransferWorker, TransferWorker],
        region: Region,
        buckets: Sequence[Bucket],
    ) -> None:
        self._tensor = ctypes.addressof(ctypes.c_char.from_buffer(tensor))
        self._source, self._target = workers
        self._from, self._to = arenas
        self._arena = ctypes.addressof(ctypes.c_char.from_buffer(self._from.view))
        self._region = region
        self._buckets = buckets
        self._digests: dict[int, str] = {}
        threads = cores.fill_threads(None)
        self._filling = asyncio.Semaphore(threads)
        self._step = step_of(threads)

    @classmethod
    async def start(
        cls, settings: TransferSettings, tensor: memoryview, source: Arena, target: Arena, buckets: Sequence[Bucket]
    ) -> Self:
        """Both workers, their arenas attached."""
        ours = await TransferWorker.start("127.0.0.1", settings, name="source")
        theirs = await TransferWorker.start("127.0.0.1", settings, name="target")
        await ours.attach(source.path)
        return cls(tensor, (source, target), (ours, theirs), await theirs.attach(target.path), buckets)

    async def publish(self, *, digests: bool = True) -> float:
        """Seconds from the first byte copied to the last bucket verified, or only written. Raises Unequal."""
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for bucket in self._buckets:
                group.create_task(self._pass(bucket, self._fill if digests else self._copy))
        return time.perf_counter() - began

    async def _pass(self, bucket: Bucket, way: Callable[[Bucket], str]) -> None:
        await self._take(bucket, way)
        await self._send(bucket)

    async def _take(self, bucket: Bucket, way: Callable[[Bucket], str]) -> None:
        async with self._filling:  # first come, first served: in the buckets' order
            self._digests[bucket.offset] = await asyncio.to_thread(way, bucket)

    async def fill(self) -> float:
        """Seconds of copies and digests alone."""
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for bucket in self._buckets:
                group.create_task(self._take(bucket, self._fill))
        return time.perf_counter() - began

    async def write(self) -> float:
        """Seconds of writing and verifying alone, of what was filled last. Raises Unequal."""
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for bucket in self._buckets:
                group.create_task(self._send(bucket))
        return time.perf_counter() - began

    def _copy(self, bucket: Bucket) -> str:
        self._move(bucket.offset, bucket.offset + bucket.nbytes)
        return ""

    def _fill(self, bucket: Bucket) -> str:
        """Copy a bucket from tensor to arena; its digest, taken on the way, by what does it for a trainer."""
        start, stop = bucket.offset, bucket.offset + bucket.nbytes
        digester = BucketDigester(BucketIndex([bucket]), [(start, stop)], self._from.view, self._step)
        digester.copy(start, stop, self._move)
        return digester.digest(0)

    def _move(self, start: int, stop: int) -> None:
        # A foreign call, so that the copy runs without the GIL, as a trainer's does.
        ctypes.memmove(self._arena + start, self._tensor + start, stop - start)

    async def _send(self, bucket: Bucket) -> None:
        digest = self._digests[bucket.offset]
        async for landed in self._source.write(self._from.path, [bucket], self._region, stall_seconds=30):
            if not digest:
                continue
            (found,) = await self._target.digest(self._to.path, [landed])
            if found.digest != digest:
                raise Unequal(f"bucket of {bucket.nbytes} bytes at {bucket.offset}")

    def digest_seconds(self) -> tuple[float, float]:
        """Processor seconds of digesting as many bytes in the core's own cache, and the arena from memory: one digest
        behind the copy and one of what another process has written take no less, whatever their order.
        """
        view, began = self._from.view, time.thread_time()
        with view[:STEP] as near:
            for _ in range(view.nbytes // STEP):
                digest_bytes(near)
        cached = time.thread_time()
        digest_bytes(view)
        return cached - began, time.thread_time() - cached

    async def regions(self) -> int:
        """Regions that the target's worker has registered."""
        return len((await probe(self._target.session, 10)).regions)

    async def close(self) -> None:
        """End both workers."""
        await self._source.close()
        await self._target.close()
