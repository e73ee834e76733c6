"""The wire between several guests: a bridge in a network namespace of its own, one tap for each guest."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tools.guest.errors import GuestError

BRIDGE = "wire"
GATEWAY = "10.77.0.254"  # the namespace's own address: programs of the host that run in it are met there
PREFIX = "weightsync-guest"
CLONE_NEWNET = 0x40000000  # of linux/sched.h; os has it from Python 3.12 on
NAMESPACES = Path("/run/netns")  # where `ip netns` keeps them


def address(node: int) -> str:
    """Of guest ``node``, counted from 1."""
    return f"10.77.0.{node}"


class Wire:
    """Use as a context manager: the namespace and all in it are gone at the end. Needs root.

    Its name holds this process's id. A run that was killed leaves its namespace behind; the next one removes it.
    """

    def __init__(self, nodes: int, mtu: int) -> None:
        self.namespace = f"{PREFIX}-{os.getpid()}"
        self._nodes = nodes
        self._mtu = mtu

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise GuestError(
                "several guests need a network namespace, which only root may make; --nodes 1 needs none"
            )
        _sweep()
        _ip("netns", "add", self.namespace)
        try:
            self.ip("link", "set", "lo", "up")
            self.ip("link", "add", BRIDGE, "mtu", str(self._mtu), "type", "bridge")
            self.ip("addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
            self.ip("link", "set", BRIDGE, "up")
            for node in range(1, self._nodes + 1):
                self.ip("tuntap", "add", self.tap(node), "mode", "tap")
                self.ip("link", "set", self.tap(node), "mtu", str(self._mtu), "master", BRIDGE, "up")
        except GuestError:
            _ip("netns", "del", self.namespace)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _ip("netns", "del", self.namespace)

    @staticmethod
    def tap(node: int) -> str:
        """The name of a guest's tap."""
        return f"guest{node}"

    def prefix(self) -> tuple[str, ...]:
        """Of a command that is to run at the wire."""
        return ("ip", "netns", "exec", self.namespace)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread is at the wire, and what it starts meanwhile: processes and threads."""
        with Path("/proc/thread-self/ns/net").open("rb") as before, (NAMESPACES / self.namespace).open("rb") as own:
            _enter(own.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def ip(self, *arguments: str) -> None:
        """Run `ip` for this namespace, such as route add ... Raises GuestError with its words."""
        _ip("-n", self.namespace, *arguments)


def _sweep() -> None:
    """Namespaces whose run was killed."""
    for line in _ip("netns", "list").splitlines():
        found = re.match(rf"({PREFIX}-(\d+))\b", line)
        if found and not os.path.isdir(f"/proc/{found[2]}"):  # noqa: PTH112 - a name of the kernel's, not a file
            _ip("netns", "del", found[1])


def _enter(descriptor: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)  # os.setns, too, came with 3.12
    if library.setns(descriptor, CLONE_NEWNET) != 0:
        raise GuestError(f"the network namespace cannot be entered: {os.strerror(ctypes.get_errno())}")


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise GuestError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout
