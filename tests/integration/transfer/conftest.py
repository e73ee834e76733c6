"""Fixtures of the tests with real Mooncake between real processes."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.transfer.workers import Bench


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder in shared memory."""
    folder = Path(tempfile.mkdtemp(prefix="weightsync-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def bench(memory_folder: Path) -> AsyncIterator[Bench]:
    """See Bench."""
    made = Bench(memory_folder)
    yield made
    await made.close()
