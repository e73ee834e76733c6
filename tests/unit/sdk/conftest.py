"""What the sdk's tests share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def volume() -> Iterator[Path]:
    """As the volume that trainer and agent share; its path is short, since a socket's must be."""
    folder = Path(tempfile.mkdtemp(prefix="ws-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)
