"""Which process a victim is, what is done to it, and how it is mended."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.chaos.cases import Case, Kind, Victim
from tools.chaos.site import Site
from tools.world.processes import Child, WorldError, stands_still

WORKER = b"weightsync_agent.transfer.worker"


@dataclass(frozen=True)
class Struck:
    """send: a signal to the victim; restart: what mends it after its death (None: its agent does that by itself).

    pod: the one whose agent's log tells of the mending.
    """

    pod: str
    send: Callable[[int], None]
    restart: Callable[[], None] | None


def find(site: Site, victim: Victim) -> Struck:
    """The victim's process as it runs now. Raises WorldError where there is none."""
    engine, (coordinator, source) = site.engines[site.struck], site.coordinator_first()
    if victim is Victim.TRAINER:
        return Struck(source.name, site.ranks[site.sources.index(source)].kill, site.start_trainer)
    if victim is Victim.ENGINE:
        if engine.engine is None:
            raise WorldError(f"{site.struck} has no engine")
        return Struck(site.struck, engine.engine.kill, engine.engine.start)
    pod = {Victim.COORDINATOR: coordinator, Victim.SOURCE_AGENT: source, Victim.SOURCE_WORKER: source}.get(
        victim, engine
    )
    if victim in (Victim.TARGET_WORKER, Victim.SOURCE_WORKER):
        return Struck(pod.name, _worker(pod.agent), None)
    return Struck(pod.name, pod.agent.kill, pod.agent.start)


def _worker(agent: Child) -> Callable[[int], None]:
    pid = next(workers(agent.pid), None)
    if pid is None:
        raise WorldError(f"{agent.name} has no transfer worker")
    handle = os.pidfd_open(pid)  # the number may be another process's by the time of the second signal

    def send(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # its agent has ended it meanwhile
            signal.pidfd_send_signal(handle, number)
            if number == signal.SIGSTOP:
                stands_still(pid)

    return send


def workers(agent: int) -> Iterator[int]:
    """Transfer workers of an agent: its children that run that module."""
    for children in Path(f"/proc/{agent}/task").glob("*/children"):
        for pid in map(int, children.read_text().split()):
            if WORKER in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid


def strike(site: Site, case: Case, struck: Struck) -> None:
    """The fault."""
    if case.victim is Victim.ENGINE and case.kind is Kind.KILL:
        site.traffic.close(site.struck)
    struck.send(signal.SIGKILL if case.kind is Kind.KILL else signal.SIGSTOP)


def end(site: Site, case: Case, struck: Struck) -> None:
    """What stopped for good is killed at last."""
    if case.victim is Victim.ENGINE:
        site.traffic.close(site.struck)
    struck.send(signal.SIGKILL)
