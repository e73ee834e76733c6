"""Arenas mapped by path and registered with Mooncake: a few big regions, each once. In the worker's process.

Registration is quadratic in the number of regions and their descriptor is sent in the handshake, so a region is
an arena, whatever the number of parameters in it.
"""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from weightsync.errors import TransferError
from weightsync.mapping import address_of, map_shared, populate
from weightsync_agent.transfer.codes import check


class Engine(Protocol):
    """What is used of mooncake.engine.TransferEngine here. The single register holds the GIL, the batch does not."""

    def batch_register_memory(self, addresses: list[int], lengths: list[int], /) -> int:
        """0, or a negative code."""

    def unregister_memory(self, address: int, /) -> int:
        """0, or a negative code."""


@dataclass
class _Mapped:
    file: tuple[int, int]  # device and inode
    view: memoryview
    address: int
    readers: int = 0
    registered: bool = True


class Registry:
    """The arenas of one worker, by path. All methods may be called from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._attaching = threading.Lock()  # held for as long as a registration takes
        self._lock = threading.Lock()  # guards the table only: writes and digests go on during a registration
        self._arenas: dict[str, _Mapped] = {}

    def attach(self, path: str, payload: int, nbytes: int) -> int:
        """Map the file, register its ``nbytes`` from offset ``payload`` on; the address of the payload.

        The same file again: the same address. Read-write, since RDMA registers no read-only mapping. Raises
        TransferError, also where another file has taken the path: remote writers may hold the old one's address.
        """
        with self._attaching:
            descriptor = _open(path)
            try:
                status = os.fstat(descriptor)
                file = (status.st_dev, status.st_ino)
                known = self._arenas.get(path)
                if known is not None and known.file != file:
                    raise TransferError(f"{path}: another file has taken this path; a new worker must map it")
                if known is not None and not known.registered:
                    raise TransferError(f"{path}: was taken from the device; a new worker must map it")
                if known is None:
                    known = self._register(path, descriptor, file, payload, nbytes)
                return known.address
            finally:
                os.close(descriptor)

    def _register(self, path: str, descriptor: int, file: tuple[int, int], payload: int, nbytes: int) -> _Mapped:
        mapping = map_shared(descriptor, payload + nbytes)
        _populate(descriptor, mapping)
        view = mapping[payload:]
        address = address_of(view)
        check(self._engine.batch_register_memory([address], [nbytes]), f"registering {nbytes} bytes of {path}")
        mapped = _Mapped(file, view, address)
        with self._lock:
            self._arenas[path] = mapped
        return mapped

    def detach(self, path: str) -> None:
        """Unregister and unmap. The caller knows that no peer writes into it. TransferError: it is being read."""
        with self._attaching, self._lock:
            known = self._known(path)
            if known.readers:
                raise TransferError(f"{path}: is being digested")
            self._unregister(path, known)
            del self._arenas[path]
            known.view.release()

    def unregister_all(self) -> None:
        """Take the arenas from the device and keep them mapped: what was submitted from them fails and lands no more.

        That holds on RDMA. On TCP Mooncake goes on with what it has begun.
        """
        with self._attaching, self._lock:
            for path, known in self._arenas.items():
                self._unregister(path, known)

    def _unregister(self, path: str, known: _Mapped) -> None:
        if known.registered:
            check(self._engine.unregister_memory(known.address), f"unregistering {path}")
            known.registered = False

    def address(self, path: str, buckets: list[tuple[int, int]]) -> int:
        """Address of the payload, once all buckets lie in it. TransferError names the first that does not."""
        with self._lock:
            known = self._known(path)
            for offset, nbytes in buckets:
                if offset < 0 or nbytes < 1 or offset + nbytes > len(known.view):
                    raise TransferError(
                        f"{path}: {nbytes} bytes at {offset} are not within its {len(known.view)} bytes"
                    )
            return known.address

    @contextmanager
    def reading(self, path: str, buckets: list[tuple[int, int]]) -> Iterator[memoryview]:
        """The payload, kept mapped meanwhile. Raises TransferError as ``address`` does."""
        self.address(path, buckets)
        with self._lock:
            known = self._known(path)
            known.readers += 1
        try:
            yield known.view
        finally:
            with self._lock:
                known.readers -= 1

    def _known(self, path: str) -> _Mapped:
        if path not in self._arenas:
            raise TransferError(f"{path}: not attached")
        return self._arenas[path]


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR)
    except OSError as error:
        if error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise
        raise TransferError(
            f"{path}: cannot be opened for writing ({error.strerror}): RDMA registers no read-only memory, also not "
            "to read from it; mount the volume read-write in the agent's container"
        ) from error


def _populate(descriptor: int, mapping: memoryview) -> None:
    """Map the pages that the file has already, all at once: else the first version pays a fault for each on the wire.

    Holes stay holes: a source's arena has pages only where its own shard lies. Pages that were allocated and never
    touched count as holes for SEEK_DATA, but not in the file's blocks: a file without any real hole is mapped whole.
    """
    size = len(mapping)
    whole = os.fstat(descriptor).st_blocks * 512 >= size
    for start, stop in [(0, size)] if whole else _extents(descriptor, size):
        if not populate(mapping, start, stop):
            return


def _extents(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Runs [start, stop) of the file that hold data."""
    stop = 0
    while stop < size:
        try:
            start = os.lseek(descriptor, stop, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        stop = min(size, os.lseek(descriptor, start, os.SEEK_HOLE))
        yield start, stop
