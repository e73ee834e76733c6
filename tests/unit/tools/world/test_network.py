"""What a run that was killed leaves on the machine is told apart from what a living one uses."""

import os
import subprocess

import pytest

from tests.conftest import unavailable
from tools.world.network import NAMESPACES, Network, orphans
from tools.world.processes import WorldError, wait


def test_orphans_are_those_whose_run_is_not_alive() -> None:
    """Names of others, and of runs that go on, are left alone."""
    names = ["weightsync-12-2", "weightsync-13-2", "wsb12", "wsb13", "weightsync-12", "eth0", "cni-12-2", "wsv12-2"]
    assert orphans(names, alive={13}) == ["weightsync-12-2", "wsb12", "weightsync-12"]


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence, not a failed command."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(WorldError, match="need root"), Network():
        pass


def test_the_next_run_removes_what_a_killed_one_left() -> None:
    """The namespace, and the process in it."""
    if os.geteuid() != 0:
        unavailable("network namespaces need root")
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = f"weightsync-{ended.pid}-2"
    subprocess.run(["ip", "netns", "add", left], check=True)
    with subprocess.Popen(["ip", "netns", "exec", left, "sleep", "60"]) as sleeper:
        wait("a process in the namespace", lambda: str(sleeper.pid) in _pids(left), 30)
        with Network():
            assert not (NAMESPACES / left).exists()
            assert sleeper.wait(10) < 0


def _pids(namespace: str) -> list[str]:
    listed = subprocess.run(["ip", "netns", "pids", namespace], check=True, capture_output=True, text=True)
    return listed.stdout.split()
