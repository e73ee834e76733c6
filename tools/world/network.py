"""Pods with a network namespace and an address each, joined by a bridge, so that what lies between two can be cut.

Needs root. Names hold the process's id, so that several runs on one machine do not meet, and so that what a run left
that was killed is found by the next one.
"""

import contextlib
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tools.world.processes import WorldError

CHAINS = (("INPUT", "-s"), ("OUTPUT", "-d"))
NAMESPACES = Path("/run/netns")
LINKS = Path("/sys/class/net")
OURS = re.compile(r"^(?:weightsync-|wsb)(\d+)(?:-\d+)?$")
# Of a shaped link: a burst holds some of the largest packets that a socket hands over, and more than passes in a tick
# of the kernel's clock.
BURST = 256 << 10
QUEUE_SECONDS = 0.1


@dataclass(frozen=True)
class Host:
    """One pod's place. prefix: of a command that is to run there; link: the bridge's end of its cable."""

    namespace: str
    address: str
    prefix: tuple[str, ...]
    link: str = ""


class Network:
    """Use as a context manager, around the World: at the end all namespaces and the bridge are gone.

    rate: bytes a second that each pod can send, and as much receive; None: as fast as the machine is.
    """

    def __init__(self, rate: int | None = None) -> None:
        self._id = os.getpid()
        self._bridge = f"wsb{self._id}"
        self._subnet = f"10.213.{os.getpid() % 250 + 1}"
        self._rate = rate
        self._hosts: dict[str, Host] = {}
        self._cut: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise WorldError("pods with a network of their own need root: network namespaces are made for them")
        sweep()
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        try:
            _run("ip", "addr", "add", f"{self._subnet}.1/24", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for host in self._hosts.values():
            _run("ip", "netns", "del", host.namespace)
        _run("ip", "link", "del", self._bridge)

    def join(self, name: str) -> Host:
        """The pod's place, made at the first call; a pod that is replaced keeps it."""
        if name in self._hosts:
            return self._hosts[name]
        number = len(self._hosts) + 2
        namespace, link = f"weightsync-{self._id}-{number}", f"wsv{self._id}-{number}"
        host = Host(namespace, f"{self._subnet}.{number}", ("ip", "netns", "exec", namespace), link)
        _run("ip", "netns", "add", namespace)
        self._hosts[name] = host
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _run("ip", "link", "set", link, "master", self._bridge, "up")
        _run("ip", "-n", namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        if self._rate is not None:
            # A queue holds back what leaves an interface: what the pod sends at its end, what it gets at the other.
            queue = BURST + int(self._rate * QUEUE_SECONDS)
            shape = ("root", "tbf", "rate", f"{self._rate}bps", "burst", str(BURST), "limit", str(queue))
            _run("tc", "-n", namespace, "qdisc", "add", "dev", "eth0", *shape)
            _run("tc", "qdisc", "add", "dev", link, *shape)
        return host

    def sent(self, name: str) -> int:
        """Bytes that have left the pod, headers and all."""
        return self._count(name, "rx_bytes")

    def received(self, name: str) -> int:
        """Bytes that have reached the pod, headers and all."""
        return self._count(name, "tx_bytes")

    def _count(self, name: str, counter: str) -> int:
        return int((LINKS / self._hosts[name].link / "statistics" / counter).read_text())

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


def orphans(names: list[str], alive: set[int]) -> list[str]:
    """Of names of namespaces and bridges those that a run left which is not alive any more. Pure."""
    return [name for name in names if (found := OURS.match(name)) and int(found[1]) not in alive]


def sweep() -> None:
    """Remove what runs left that were killed: the processes in their namespaces, the namespaces, the bridges."""
    alive = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    namespaces = [path.name for path in NAMESPACES.iterdir()] if NAMESPACES.is_dir() else []
    for name in orphans(namespaces, alive):
        listed = subprocess.run(["ip", "netns", "pids", name], check=True, capture_output=True, text=True)
        for pid in map(int, listed.stdout.split()):
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                os.kill(pid, signal.SIGKILL)
        _run("ip", "netns", "del", name)
    for name in orphans([path.name for path in LINKS.iterdir()], alive):
        _run("ip", "link", "del", name)


def _run(*command: str) -> None:
    """Raises CalledProcessError, with the command's own words on standard error."""
    subprocess.run(command, check=True)
