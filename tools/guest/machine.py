"""One guest: its control folder, its QEMU, what it says, how it ended."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO

from tools.guest.kernel import STAGES, Boot
from tools.setup.commands import tail

APPEND = "console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0"
LIMIT, FAILED = 124, 125


@dataclass(frozen=True)
class Network:
    """Where a guest is. netdev: QEMU's; prefix: of the command that starts QEMU."""

    address: str
    gateway: str
    netdev: str
    prefix: tuple[str, ...] = ()


# QEMU's own network, which reaches nothing: for a guest that is alone.
ALONE = Network("10.0.2.15", "10.0.2.2", "user,id=eth,restrict=on")


@dataclass(frozen=True)
class Shape:
    """What a guest is given. disks: files that it may only read."""

    memory: str
    processors: int
    mtu: int
    accelerator: str
    disks: tuple[Path, ...] = ()


class Machine:
    """One guest. control: a folder of its own, made here."""

    def __init__(self, node: int, boot: Boot, *, shape: Shape, network: Network, control: Path, out: Path) -> None:
        self.node = node
        self._boot = boot
        self._shape = shape
        self._network = network
        self._control = control
        self._out = out
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: list[threading.Thread] = []

    def start(self, command: Sequence[str], environment: Mapping[str, str], nodes: int) -> None:
        """Boot it, to run ``command``."""
        self._prepare(command, environment, nodes)
        pipes = [os.pipe() for _ in range(2)]
        try:
            with (self._control / "qemu.log").open("wb") as log:
                self._process = subprocess.Popen(
                    # The kernel ends it where we are killed: nobody else would.
                    ["setpriv", "--pdeathsig", "KILL", *self._network.prefix, *self._qemu([end for _, end in pipes])],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[written for _, written in pipes],
                    # Not this terminal's: Ctrl-C reaches us, and we end it.
                    start_new_session=True,
                )  # fmt: skip
        finally:
            for _, written in pipes:
                os.close(written)
        lead = f"[{self.node}] ".encode() if nodes > 1 else b""
        for (read, _), sink in zip(pipes, (sys.stdout.buffer, sys.stderr.buffer), strict=True):
            reader = threading.Thread(target=_copy, args=(os.fdopen(read, "rb"), sink, lead), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _prepare(self, command: Sequence[str], environment: Mapping[str, str], nodes: int) -> None:
        self._control.mkdir()
        shutil.copy(STAGES / "second.sh", self._control)
        told = {
            "GUEST_NODE": str(self.node),
            "GUEST_NODES": str(nodes),
            "GUEST_ADDRESS": self._network.address,
            "GUEST_DEVICE": "rxe0",
            "OUT": str(self._out),
        }
        own = {
            "GUEST_GATEWAY": self._network.gateway,
            "MTU": str(self._shape.mtu),
            "MODULES": str(self._boot.modules),
            "FOLDER": str(Path.cwd()),
        }
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in (told | own).items()]
        (self._control / "variables").write_text("".join(lines))
        exports = [f"export {name}={shlex.quote(value)}\n" for name, value in {**environment, **told}.items()]
        (self._control / "job.sh").write_text(f"{''.join(exports)}{shlex.join(command)}\n")

    def _qemu(self, pipes: Sequence[int]) -> list[str]:
        shape = self._shape
        threads = ",thread=multi" if shape.accelerator == "tcg" else ""
        device = f"virtio-net-pci,netdev=eth,mac=52:54:00:77:00:{self.node:02x},host_mtu=9000"
        share = "local,security_model=none,multidevs=remap"
        # The command's two streams leave by ports of their own: the console cannot mix into them.
        ports = []
        for name, pipe, number in zip(("out", "err"), pipes, (1, 2), strict=True):
            ports += ["-add-fd", f"fd={pipe},set={number}", "-chardev"]
            ports += [f"file,id={name},path=/dev/fdset/{number},append=on"]
            ports += ["-device", f"virtserialport,chardev={name},name={name}"]
        disks = []
        for number, disk in enumerate(shape.disks):
            disks += ["-blockdev", f"raw,node-name=disk{number},read-only=on,file.driver=file,file.filename={disk}"]
            disks += ["-device", f"virtio-blk-pci,drive=disk{number}"]
        return [
            "qemu-system-x86_64", "-accel", f"{shape.accelerator}{threads}",
            "-cpu", "max" if shape.accelerator == "tcg" else "host",
            "-smp", str(shape.processors), "-m", shape.memory,
            "-nodefaults", "-display", "none", "-no-reboot", "-serial", f"file:{self._control}/console.log",
            "-kernel", str(self._boot.kernel), "-initrd", str(self._boot.initrd), "-append", APPEND,
            "-fsdev", f"{share},id=root,path=/,readonly=on", "-device", "virtio-9p-pci,fsdev=root,mount_tag=root",
            "-fsdev", f"{share},id=control,path={self._control}",
            "-device", "virtio-9p-pci,fsdev=control,mount_tag=control",
            "-fsdev", f"{share},id=out,path={self._out}", "-device", "virtio-9p-pci,fsdev=out,mount_tag=out",
            "-netdev", self._network.netdev, "-device", device,
            "-device", "virtio-rng-pci", "-device", "virtio-serial-pci", *ports, *disks,
        ]  # fmt: skip

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it, whatever it is at, and wait until it is over and all that it said was passed on."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()

    @property
    def booted_seconds(self) -> float | None:
        """How long it took, by its own clock, until the command started."""
        path = self._control / "booted"
        return float(path.read_text()) if path.exists() else None

    @property
    def status(self) -> int | None:
        """The command's exit status; None where it did not come to an end."""
        path = self._control / "status"
        return int(path.read_text()) if path.exists() and path.read_text().strip() else None

    def last_words(self) -> str:
        """The ends of QEMU's log and of the console."""
        logs = [self._control / name for name in ("qemu.log", "console.log")]
        return "\n".join(tail(log) for log in logs if log.exists())


def _copy(source: BufferedReader, sink: IO[bytes], lead: bytes) -> None:
    """As it comes; with a lead, line by line."""
    with source:
        while part := source.readline() if lead else source.read1():
            sink.write(lead + part)
            sink.flush()
