"""One run: guests that are booted together, run the same command, and end together."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.guest import kernel, wire
from tools.guest.errors import GuestError
from tools.guest.machine import ALONE, FAILED, LIMIT, Machine, Network, Shape

NODES = 250  # as many as the wire has addresses for


@dataclass(frozen=True)
class Job:
    """What is run, and in what. seconds: limit of the whole, boot included; out: None for a folder that goes.

    disks: files that guests have as read-only disks, the first as /dev/vda (module virtio_blk).
    """

    command: tuple[str, ...]
    nodes: int = 1
    out: Path | None = None
    seconds: float = 300.0
    memory: str = "3G"
    processors: int = 2
    mtu: int = 4200
    accelerator: str = "tcg"
    environment: dict[str, str] = field(default_factory=dict)
    disks: tuple[Path, ...] = ()


def run(job: Job) -> int:
    """The exit status, see __main__. Raises GuestError before anything was booted."""
    with booted(job) as machines:
        return _outcome(machines, time.monotonic() + job.seconds, job.seconds)


@contextlib.contextmanager
def booted(job: Job, line: wire.Wire | None = None) -> Iterator[list[Machine]]:
    """The guests, started; they are killed at the end of the block, whatever they are at.

    line: a wire that is there already; None: one of their own where there are several.
    Raises GuestError before anything was booted.
    """
    if not 1 <= job.nodes <= NODES:
        raise GuestError(f"{job.nodes} guests: 1 to {NODES} can be")
    boot = kernel.boot()
    with tempfile.TemporaryDirectory(prefix="weightsync-guest-") as folder, contextlib.ExitStack() as stack:
        out = (job.out or Path(folder) / "out").resolve()
        out.mkdir(parents=True, exist_ok=True)
        stack.enter_context(_ended_by_signals())
        if line is None and job.nodes > 1:
            line = stack.enter_context(wire.Wire(job.nodes, job.mtu))
        shape = Shape(job.memory, job.processors, job.mtu, job.accelerator, job.disks)
        machines = [
            Machine(node, boot, shape=shape, network=_network(line, node), control=Path(folder) / str(node), out=out)
            for node in range(1, job.nodes + 1)
        ]
        for machine in machines:
            stack.callback(machine.kill)
        for machine in machines:
            machine.start(job.command, job.environment, job.nodes)
        yield machines


def _network(line: wire.Wire | None, node: int) -> Network:
    if line is None:
        return ALONE
    netdev = f"tap,id=eth,ifname={line.tap(node)},script=no,downscript=no"
    return Network(wire.address(node), wire.GATEWAY, netdev, line.prefix())


def _outcome(machines: list[Machine], deadline: float, seconds: float) -> int:
    """The first status that is not 0; the others are waited for all the same."""
    result = 0
    for machine in machines:
        in_time = machine.wait(deadline - time.monotonic())
        machine.kill()
        status = machine.status
        if status is None and not in_time:
            sys.stderr.write(f"guest {machine.node}: not done within {seconds:g} s\n")
            status = LIMIT
        elif status is None:
            sys.stderr.write(f"guest {machine.node} died; its last words:\n{machine.last_words()}\n")
            status = FAILED
        result = result or status
    return result


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: through the code that ends its guests."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
