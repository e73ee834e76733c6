"""Ports stay their owner's while nobody listens there."""

import socket
import subprocess
import sys

import pytest

from tools.world import ports
from tools.world.pod import HOST
from tools.world.ports import NoPort, Ports

OTHER = """
from tools.world import ports
ports.PORTS = range(int(__import__("sys").argv[1]), int(__import__("sys").argv[2]))
print(ports.Ports().take())
"""


def other_process(found: range) -> "subprocess.CompletedProcess[str]":
    """What another process takes of these."""
    command = [sys.executable, "-c", OTHER, str(found.start), str(found.stop)]
    path = {"PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(command, env=path, capture_output=True, text=True, check=False)


def test_what_is_taken_is_nobody_elses_until_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither here nor in another process, though nobody listens on it."""
    with Ports() as first:
        number = first.take()
        monkeypatch.setattr(ports, "PORTS", range(number, number + 1))
        with Ports() as second, pytest.raises(NoPort, match=f"no port of {number}"):
            second.take()
        assert "NoPort" in other_process(ports.PORTS).stderr
    assert other_process(ports.PORTS).stdout.split() == [str(number)]


def test_where_somebody_listens_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the claim is given back at once."""
    with Ports() as some:
        number = some.take()
    monkeypatch.setattr(ports, "PORTS", range(number, number + 1))
    with Ports() as some:
        with socket.socket() as listener:
            listener.bind((HOST, number))
            listener.listen()
            with pytest.raises(NoPort):
                some.take()
        assert some.take() == number
