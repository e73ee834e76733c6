"""The arena: a shared-memory file that holds one replica, and its header. Used by agent, Publisher and worker.

The header is one page before the payload; the in-engine hook, which may import nothing of ours, reads the same
fields by the same struct (hook/weightsync_hook.py; a test holds the two together).

A state is written in an order that survives a kill at any instant: first Filling, then bytes, then Sealed with
the version; the header carries its own checksum, so a torn header reads as no header.
"""

import enum
import fcntl
import os
import stat
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from weightsync.bounds import LARGEST
from weightsync.buckets import PAGE, Extent
from weightsync.errors import InputError
from weightsync.mapping import collapse, map_shared, populate
from weightsync.version import Version

MAGIC = b"WSARENA1"
# magic, state, payload bytes, layout digest, program digest, grant, lineage, number, root
FIELDS = struct.Struct("<8sQQ16s16s16s8sQ32s")
CHECKSUM = struct.Struct("<I")  # crc32 of FIELDS, right behind them
PAYLOAD = PAGE  # the payload's offset in the file


class ArenaState(enum.IntEnum):
    """What the payload's bytes may be trusted for."""

    EMPTY = 0  # nothing
    FILLING = 1  # nothing: some writer was granted them
    SEALED = 2  # they are the version in the header


class Header(NamedTuple):
    """The header's fields; grant is 16 bytes in hex, version is None unless sealed."""

    state: ArenaState
    nbytes: int
    layout: str
    program: str
    grant: str
    version: Version | None

    def pack(self) -> bytes:
        """The header as it stands in the file."""
        v = self.version
        fields = FIELDS.pack(
            MAGIC, self.state, self.nbytes, bytes.fromhex(self.layout), bytes.fromhex(self.program),
            bytes.fromhex(self.grant), bytes.fromhex(v.lineage) if v else bytes(8), v.number if v else 0,
            bytes.fromhex(v.root) if v else bytes(32),
        )  # fmt: skip
        return fields + CHECKSUM.pack(zlib.crc32(fields))

    @classmethod
    def unpack(cls, data: bytes, origin: str) -> "Header":
        """Raises InputError that names ``origin`` where the bytes are no whole header."""
        if len(data) < FIELDS.size + CHECKSUM.size:
            raise InputError(f"{origin}: {len(data)} bytes are no arena header")
        fields = data[: FIELDS.size]
        magic, state, nbytes, layout, program, grant, lineage, number, root = FIELDS.unpack(fields)
        if magic != MAGIC:
            raise InputError(f"{origin}: not an arena (magic {magic!r})")
        if CHECKSUM.unpack_from(data, FIELDS.size)[0] != zlib.crc32(fields):
            raise InputError(f"{origin}: the arena's header is torn or corrupted")
        if state not in ArenaState.__members__.values():
            raise InputError(f"{origin}: state {state} is not known")
        sealed = state == ArenaState.SEALED
        if sealed and not 1 <= number <= LARGEST:
            raise InputError(f"{origin}: sealed as version number {number}, which no version has")
        version = Version(lineage=lineage.hex(), number=number, root=root.hex()) if sealed else None
        return cls(ArenaState(state), nbytes, layout.hex(), program.hex(), grant.hex(), version)


NO_GRANT = "0" * 32


class Arena:
    """One open arena file. ``view`` is the payload, writable; close() lets go of the mapping, the file stays.

    Pages are allocated when touched or by prefault(); they belong to the volume (and to the memory limit of
    whoever touched them first), so they outlive every process.
    """

    def __init__(self, path: Path, descriptor: int, header: Header) -> None:
        self.path = path
        self._descriptor = descriptor
        self._header = header
        self._map = map_shared(descriptor, PAYLOAD + header.nbytes)
        self.view = self._map[PAYLOAD:]

    @classmethod
    def create(cls, path: Path, *, layout: str, program: str, nbytes: int) -> Self:
        """A new Empty arena of ``nbytes`` payload, locked by this process; an old file at ``path`` is replaced.

        The new file is built beside the old one and renamed over it: whoever still maps the old one keeps it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(descriptor, 0o666)  # the engine's and the trainer's containers may run as other users
            os.ftruncate(descriptor, PAYLOAD + nbytes)
            header = Header(ArenaState.EMPTY, nbytes, layout, program, NO_GRANT, None)
            os.pwrite(descriptor, header.pack(), 0)
            temporary.rename(path)
            return cls(path, descriptor, header)
        except OSError:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
            raise

    @classmethod
    def open(cls, path: Path, *, lock: bool = False) -> Self:
        """Map an existing arena. ``lock``: as its owner (InputError where another process is).

        Raises InputError where the file is missing, short, or its header torn.
        """
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError as error:
            raise InputError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            header = Header.unpack(os.pread(descriptor, PAGE, 0), str(path))
            status = os.fstat(descriptor)
            size = status.st_size
            if size != PAYLOAD + header.nbytes or not stat.S_ISREG(status.st_mode):
                raise InputError(f"{path}: {size} bytes, {PAYLOAD + header.nbytes} expected by its header")
            if lock:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return cls(path, descriptor, header)
        except BlockingIOError as error:
            os.close(descriptor)
            raise InputError(f"{path}: another process owns this arena") from error
        except OSError as error:  # no file that can be read at an offset, or none that can be mapped
            os.close(descriptor)
            raise InputError(f"{path}: cannot be used as an arena: {error.strerror}") from error
        except InputError:
            os.close(descriptor)
            raise

    @property
    def header(self) -> Header:
        """The header as this owner last wrote it."""
        return self._header

    def reread(self) -> Header:
        """The header as it stands in the file now (for readers that do not own it)."""
        self._header = Header.unpack(os.pread(self._descriptor, PAGE, 0), str(self.path))
        return self._header

    def fill(self, grant: str) -> None:
        """Before the first byte: the payload is nobody's version any more."""
        self._write(self._header._replace(state=ArenaState.FILLING, grant=grant, version=None))

    def seal(self, grant: str, version: Version) -> None:
        """After the last byte was verified: the payload is ``version``."""
        self._write(self._header._replace(state=ArenaState.SEALED, grant=grant, version=version))

    def empty(self) -> None:
        """The payload is nothing."""
        self._write(self._header._replace(state=ArenaState.EMPTY, grant=NO_GRANT, version=None))

    def _write(self, header: Header) -> None:
        os.pwrite(self._descriptor, header.pack(), 0)
        self._header = header

    @property
    def allocated(self) -> bool:
        """Every page of the payload is there: a write into one that is not ends its process in a full volume."""
        there = os.fstat(self._descriptor).st_blocks * 512
        return there - PAGE >= self._header.nbytes  # but for the header's own

    def prefault(self, extents: Iterable[Extent]) -> None:
        """Allocate the extents' pages now, huge ones where there are, so that no copy and no write meets a
        full volume half-way. Takes 0.2 to 1.1 s a GiB, without the GIL.

        Raises InputError that says how many bytes are missing and what to raise.
        """
        for start, stop in extents:
            first = (PAYLOAD + start) // PAGE * PAGE
            # Before small pages are there: those would have to be copied into the huge ones.
            collapse(self._map, first, PAYLOAD + stop)
            try:
                os.posix_fallocate(self._descriptor, first, PAYLOAD + stop - first)
            except OSError as error:
                raise InputError(
                    f"{self.path}: no room for {stop - start} bytes in the memory volume ({error.strerror}): "
                    "raise the volume's sizeLimit and the agent's memory limit"
                ) from error
            # Mapped too: a first fill that meets a fault at each page takes several times as long.
            populate(self._map, first, PAYLOAD + stop)

    def close(self) -> None:
        """Let go of the mapping and the lock. What still looks into the payload keeps it mapped."""
        self.view.release()
        self._map.release()
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
