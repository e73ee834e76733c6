"""A short folder in memory for sockets and arenas: a Unix socket's path may have some hundred characters only."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def volume() -> Iterator[Path]:
    """As the volume that trainer and agent share."""
    folder = Path(tempfile.mkdtemp(prefix="ws-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)
