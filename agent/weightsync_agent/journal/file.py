"""Records on disk that survive a kill at any instant: written whole or not at all, and never misread.

A file is one line: format, kind of the record, checksum, the record's canonical JSON. A new one is written beside
the old, synced, and renamed over it; then the folder is synced, for the rename itself is only in its pages until
then. Neither half of a line nor a line with a flipped bit passes for a record.
"""

import os
from pathlib import Path
from typing import Generic, TypeVar

import xxhash

from weightsync.errors import InputError
from weightsync.names import JOURNAL
from weightsync.records import Record
from weightsync_agent.journal.records import Decision, Journal, Pairing

FORMAT = b"weightsync/1"
DECISION = "decision"  # file names beside names.JOURNAL
PAIRING = "pairing"

R = TypeVar("R", bound=Record)


class StateFile(Generic[R]):
    """One record of type ``kind`` at ``path``. The calls block for one fsync: use a thread where disks are slow."""

    def __init__(self, path: Path, kind: type[R]) -> None:
        self.path = path
        self._kind = kind

    def read(self) -> R | None:
        """The record, None where none was ever written.

        Raises InputError for a file that is there but is no whole record: what it said is unknown, so the
        caller takes the worst that it can have said (an engine is torn).
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read: {error.strerror}") from error
        return self._kind.read(decode(data, self._kind.__name__, str(self.path)), str(self.path))

    def write(self, record: R) -> None:
        """Make ``record`` the file's content. When this returns, no crash brings the old one back.

        Raises InputError where it cannot be written; the old content is then still there.
        """
        temporary = self.path.with_name(self.path.name + ".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                _write_all(descriptor, encode(record))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.rename(self.path)
            _sync_folder(self.path.parent)
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be written: {error.strerror}: free the volume or make it writable for the agent"
            ) from error

    def remove(self) -> None:
        """Nothing is recorded any more, whatever crashes from here on. Raises InputError where it stays."""
        try:
            self.path.unlink(missing_ok=True)
            _sync_folder(self.path.parent)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be removed: {error.strerror}") from error


class JournalFile(StateFile[Journal]):
    """The engine leader's journal."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Journal)

    @classmethod
    def within(cls, directory: Path) -> "JournalFile":
        """The one in the shared volume."""
        return cls(directory / JOURNAL)


class DecisionFile(StateFile[Decision]):
    """The coordinator's last decision."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Decision)

    @classmethod
    def within(cls, directory: Path) -> "DecisionFile":
        """The one in the shared volume."""
        return cls(directory / DECISION)


class PairingFile(StateFile[Pairing]):
    """What a trainer rank learned from the first version of its Publisher's life."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Pairing)

    @classmethod
    def within(cls, directory: Path, rank: int) -> "PairingFile":
        """The rank's in the shared volume."""
        return cls(directory / f"{PAIRING}-{rank}")


def encode(record: Record) -> bytes:
    """The line that stands for ``record``."""
    body = record.canonical()
    head = b" ".join((FORMAT, type(record).__name__.encode()))
    return b" ".join((head, _checksum(head, body), body)) + b"\n"


def decode(data: bytes, kind: str, origin: str) -> bytes:
    """The JSON inside a line. Raises InputError that names ``origin`` where it is no whole line of that kind."""
    parts = data.split(b" ", 3)
    if not data.endswith(b"\n") or len(parts) != 4:
        raise InputError(f"{origin}: torn: {len(data)} bytes are no whole record")
    found, name, checksum, body = parts[0], parts[1], parts[2], parts[3][:-1]
    if checksum != _checksum(b" ".join((found, name)), body):
        raise InputError(f"{origin}: corrupted: its checksum does not fit its content")
    if found != FORMAT:
        raise InputError(f"{origin}: format {found.decode(errors='replace')!r} is not known, {FORMAT.decode()} is")
    if name != kind.encode():
        raise InputError(f"{origin}: holds a {name.decode(errors='replace')}, not a {kind}")
    return body


def _checksum(head: bytes, body: bytes) -> bytes:
    return xxhash.xxh3_128_hexdigest(head + b" " + body).encode()


def _write_all(descriptor: int, data: bytes) -> None:
    at = 0
    while at < len(data):  # a write may take part of the data, when a signal comes or the volume fills
        at += os.write(descriptor, data[at:])


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
