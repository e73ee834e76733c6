"""Being at the guests' wire."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tools.guest.wire import GATEWAY, Wire


@pytest.fixture
def line() -> Wire:
    """Without guests."""
    if os.geteuid() != 0:
        unavailable("network namespaces need root")
    return Wire(1, 1500)


def test_who_is_inside_is_at_the_wire_and_comes_back(line: Wire) -> None:
    """A process that is started inside has the wire's addresses; afterwards nothing is as it was not before."""
    here = Path("/proc/thread-self/ns/net").readlink()
    with line:
        line.ip("address", "add", "10.214.0.1/32", "dev", "lo")
        with line.inside():
            seen = subprocess.run(["ip", "-br", "address"], capture_output=True, text=True, check=True).stdout
        assert Path("/proc/thread-self/ns/net").readlink() == here
    assert GATEWAY in seen
    assert "10.214.0.1/32" in seen
    assert line.namespace not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
