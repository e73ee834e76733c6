"""Tests over real verbs. They run in guests with a soft-RoCE device (`make rdma-test`), and nowhere else."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.transfer.workers import Bench
from tests.rdma import far
from weightsync_agent.transfer.settings import TransferSettings

DEVICE = os.environ.get("GUEST_DEVICE", "")
if not DEVICE:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def verbs() -> TransferSettings:
    """A worker's settings over the guest's device."""
    return far.verbs()


@pytest.fixture
async def bench(tmp_path: Path, verbs: TransferSettings) -> AsyncIterator[Bench]:
    """Workers over verbs, at this guest's address, with arenas in its shared memory."""
    folder = Path("/dev/shm") / tmp_path.name
    folder.mkdir()
    made = Bench(folder, os.environ["GUEST_ADDRESS"], verbs)
    yield made
    await made.close()
