"""Pods with a network namespace and an address each, joined by a bridge, so that what lies between two can be cut.

Needs root. Names and addresses hold the process's id, so that several runs on one machine do not meet.
"""

import os
import subprocess
from dataclasses import dataclass
from types import TracebackType
from typing import Self

CHAINS = (("INPUT", "-s"), ("OUTPUT", "-d"))


@dataclass(frozen=True)
class Host:
    """One pod's place. prefix: of a command that is to run there."""

    namespace: str
    address: str
    prefix: tuple[str, ...]


class Network:
    """Use as a context manager, around the World: at the end all namespaces and the bridge are gone."""

    def __init__(self) -> None:
        self._id = os.getpid() % 100000
        self._bridge = f"wsb{self._id}"
        self._subnet = f"10.213.{os.getpid() % 250 + 1}"
        self._hosts: dict[str, Host] = {}
        self._cut: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self._subnet}.1/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self._hosts.values():
            _run("ip", "netns", "del", host.namespace)
        _run("ip", "link", "del", self._bridge)

    def join(self, name: str) -> Host:
        """The pod's place, made at the first call; a pod that is replaced keeps it."""
        if name in self._hosts:
            return self._hosts[name]
        number = len(self._hosts) + 2
        namespace, link = f"weightsync-{self._id}-{number}", f"wsv{self._id}-{number}"
        host = Host(namespace, f"{self._subnet}.{number}", ("ip", "netns", "exec", namespace))
        _run("ip", "netns", "add", namespace)
        self._hosts[name] = host
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _run("ip", "link", "set", link, "master", self._bridge, "up")
        _run("ip", "-n", namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        return host

    def cut(self, one: str, other: str) -> None:
        """From now on every packet between two pods is dropped, without a word to either."""
        self._rules("-A", one, other)
        self._cut.append((one, other))

    def heal(self) -> None:
        """Undo every cut."""
        while self._cut:
            self._rules("-D", *self._cut.pop())

    def _rules(self, change: str, one: str, other: str) -> None:
        for chain, side in CHAINS:
            _run(*self._hosts[one].prefix, "iptables", change, chain, side, self._hosts[other].address, "-j", "DROP")


def _run(*command: str) -> None:
    """Raises CalledProcessError, with the command's own words on standard error."""
    subprocess.run(command, check=True)
