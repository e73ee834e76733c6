"""What the sdk's tests share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A machine that builds and tests at once may take long over one example: time is no property of these.
settings.register_profile("weightsync", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("weightsync")


@pytest.fixture
def volume() -> Iterator[Path]:
    """As the volume that trainer and agent share; its path is short, since a socket's must be."""
    folder = Path(tempfile.mkdtemp(prefix="ws-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)
