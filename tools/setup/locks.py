"""File locks between processes: two clones that set up at once take turns."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive(path: Path, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock file `path`; where another process holds it, call `waiting` with who that is, then wait.

    The lock is the kernel's (flock), so that it ends with its holder, however that one ends. The file stays: to
    remove it would let two processes lock two different files of the same name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                waiting(f"process {holder}" if holder else "another process")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
