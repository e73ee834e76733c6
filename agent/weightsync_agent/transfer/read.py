"""Reading another process's memory back, one-sided, to digest it. In the worker's process.

Into one buffer of bounded size, for whoever reads so has no memory for a replica. What of a bucket is in no run is
padding, and counts as zeros, as it is in every replica.
"""

import ctypes
import mmap
import threading
from typing import Protocol

import xxhash

from weightsync.errors import TransferError
from weightsync_agent import failpoints
from weightsync_agent.transfer.codes import check
from weightsync_agent.transfer.runs import Placed, within

AT_ONCE = 500  # runs of one call: far more outstanding to one peer can break the path to it for good


class Engine(Protocol):
    """What is used of mooncake.engine.TransferEngine here; the calls release the GIL."""

    def batch_register_memory(self, addresses: list[int], lengths: list[int], /) -> int:
        """0, or a negative code."""

    def batch_transfer_sync_read(
        self, session: str, buffers: list[int], addresses: list[int], lengths: list[int], /
    ) -> int:
        """0, or a negative code: then bytes may still come into the buffers."""


class Reader:
    """nbytes: of the buffer, which is made and registered with the first call."""

    def __init__(self, engine: Engine, nbytes: int) -> None:
        self._engine = engine
        self._nbytes = nbytes
        self._lock = threading.Lock()
        self._map: mmap.mmap | None = None
        self._base = 0
        self._spent = False

    def digest(self, session: str, buckets: list[tuple[int, int]], runs: list[Placed]) -> list[str]:
        """xxh3-128 of each bucket (offset, bytes). Raises TransferError; after one this reader is of no use.

        A read that failed may still come in, into a buffer that the next one would digest.
        """
        with self._lock:
            if self._spent:
                raise TransferError("a read of this worker failed before: start another")
            self._spent = True
            found = [self._one(session, offset, nbytes, runs) for offset, nbytes in buckets]
            self._spent = False
            return found

    def _one(self, session: str, offset: int, nbytes: int, runs: list[Placed]) -> str:
        buffer = self._buffer()
        hashed = xxhash.xxh3_128()
        for at in range(offset, offset + nbytes, self._nbytes):
            size = min(self._nbytes, offset + nbytes - at)
            parts = within(runs, at, size)
            if sum(part.nbytes for part in parts) != size:
                ctypes.memset(self._base, 0, size)
            for first in range(0, len(parts), AT_ONCE):
                self._read(session, at, parts[first : first + AT_ONCE])
            with memoryview(buffer) as whole, whole[:size] as chunk:
                failpoints.corrupt(chunk)
                hashed.update(chunk)
        return hashed.hexdigest()

    def _read(self, session: str, at: int, parts: list[Placed]) -> None:
        code = self._engine.batch_transfer_sync_read(
            session,
            [self._base + part.offset - at for part in parts],
            [part.address for part in parts],
            [part.nbytes for part in parts],
        )
        check(code, f"reading {sum(part.nbytes for part in parts)} bytes back from {session}")

    def _buffer(self) -> mmap.mmap:
        if self._map is None:
            made = mmap.mmap(-1, self._nbytes)
            base = ctypes.addressof(ctypes.c_char.from_buffer(made))
            check(self._engine.batch_register_memory([base], [self._nbytes]), f"registering {self._nbytes} bytes")
            self._map, self._base = made, base
        return self._map
