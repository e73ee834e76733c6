"""The cluster as a whole: the wire, the guests, the control plane; waiting for it, asking its devices, its logs."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tools.cluster import layout as local
from tools.cluster.errors import ClusterError
from tools.cluster.layout import Layout
from tools.guest import wire
from tools.guest.errors import GuestError
from tools.guest.machine import Machine
from tools.guest.run import Job, booted
from tools.guest_cluster import control, node_files
from tools.guest_cluster.places import PORTS, RESOURCE, Node, nodes
from tools.setup import debian, go_binaries
from tools.setup.commands import tail

STAGES = Path(__file__).resolve().parent / "stages"
MTU = 4200  # carries RDMA packets of 4096 bytes
READY_SECONDS = 240.0  # emulated, beside other work
ANSWER_SECONDS = 60.0
PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class Counted:
    """Packets of a guest's device, by its own counters (hw_counters)."""

    sent: int
    received: int


@dataclass(frozen=True)
class GuestCluster:
    """A running one. Its methods are for a thread at the wire. out: the folder that its guests share with us."""

    nodes: list[Node]
    layout: Layout
    out: Path
    machines: list[Machine]
    _asked: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.layout.kubeconfig

    def until(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        """Return when it holds. Raises ClusterError at the deadline, GuestError where a guest has died."""
        limit = time.monotonic() + seconds
        while not condition():
            for machine in self.machines:
                if machine.wait(0):
                    raise GuestError(
                        f"guest {machine.node} ended while {what} was waited for\n{machine.last_words()}"
                    )
            if time.monotonic() > limit:
                raise ClusterError(f"not within {seconds:.0f} s: {what}")
            time.sleep(PAUSE_SECONDS)

    def wait_until_ready(self) -> None:
        """Every node takes pods, and pods may ask for its RDMA device."""
        for node in self.nodes:
            self.until(f"{node.name} is ready", partial(self._holds, is_ready, node), READY_SECONDS)
        for node in self.nodes:
            self.until(f"{node.name} offers {RESOURCE}", partial(self._holds, offers, node), READY_SECONDS)

    def _holds(self, condition: Callable[[Mapping[str, Any]], bool], node: Node) -> bool:
        return condition(self.node(node))

    def node(self, node: Node) -> dict[str, Any]:
        """Its object; empty where there is none yet."""
        try:
            return control.client(self.layout).get(f"/api/v1/nodes/{node.name}")
        except (ClusterError, OSError):
            return {}

    def counted(self, node: Node) -> Counted:
        """What the guest's device has counted by now."""
        folder, asked = self.out / node.name, str(next(self._asked))
        fresh = folder / "asked.new"
        fresh.write_text(f"{asked}\n")
        fresh.replace(folder / "asked")
        answer = folder / "told"

        def told() -> list[str]:
            return answer.read_text().split() if answer.exists() else []

        self.until(f"the counters of {node.name}", lambda: told()[:1] == [asked], ANSWER_SECONDS)
        _, sent, received = told()
        return Counted(int(sent), int(received))

    def tails(self) -> str:
        """The ends of all logs: of the control plane, and of each guest's programs."""
        logs = [*sorted(self.layout.logs.glob("*.log")), *sorted(self.out.glob("*/*.log"))]
        return "\n".join(f"--- {log.parent.name}/{log.name}\n{tail(log)}" for log in logs)


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether a node takes pods. Pure."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def offers(node: Mapping[str, Any]) -> bool:
    """Whether its device plugin has been heard. Pure."""
    return int(node.get("status", {}).get("allocatable", {}).get(RESOURCE, "0")) > 0


def programs() -> dict[str, Path]:
    """All that it runs, by name, set up where it is missing. Raises SetupError."""
    debian.install(debian.GUEST_NODE)
    return {**go_binaries.full(), **go_binaries.device_plugin()}


@contextmanager
def running(
    count: int, store: Path, found: Mapping[str, Path], out: Path, *, memory: str = "3G"
) -> Iterator[GuestCluster]:
    """Booting at the beginning of the block, which this thread spends at the wire; gone after it. Needs root.

    store: the disk of images (store.prepare). out: a folder, empty or not there.
    """
    guests = nodes(count)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weightsync-guest-cluster-")))
        line = stack.enter_context(wire.Wire(count, MTU))
        line.ip("address", "add", f"{local.API_SERVICE_IP}/32", "dev", wire.BRIDGE)
        for node in guests:
            line.ip("route", "add", node.pods, "via", node.address)
        stack.enter_context(line.inside())
        layout = Layout(folder, PORTS)
        authority = control.write(layout, guests)
        for node in guests:
            others = [other for other in guests if other != node]
            node_files.write(folder / "nodes" / node.name, node, others, authority)
        path = {str(found[name].parent) for name in ("containerd", "kubelet", "k8s-rdma-shared-dp")}
        job = Job(
            command=("bash", str(STAGES / "node.sh"), str(folder / "nodes")),
            nodes=count,
            out=out,
            memory=memory,
            processors=1,
            mtu=MTU,
            disks=(store,),
            environment={"PATH": ":".join([*sorted(path), "/usr/sbin:/usr/bin:/sbin:/bin"])},
        )
        machines = stack.enter_context(booted(job, line))
        stack.enter_context(control.running(found, layout, authority))
        yield GuestCluster(guests, layout, out.resolve(), machines)
