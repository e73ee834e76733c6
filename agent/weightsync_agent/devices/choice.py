"""Which devices can be used, which of them a rank is given, and which transport that makes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from weightsync_agent.devices.records import INFINIBAND, Device, Port

EFA = "efa"  # the driver
Wanted = Literal["auto", "rdma", "tcp"]


@dataclass(frozen=True)
class Place:
    """Where a rank's memory or accelerator is. None, empty: not known."""

    numa: int | None = None
    pci: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """What workers are started with. why: one sentence, for the log and for whoever wonders about TCP."""

    transport: Literal["tcp", "rdma"]
    devices: tuple[Device, ...]
    why: str


def port_problem(port: Port, gid_index: int | None = None) -> str:
    """Why nothing can be sent through a port; empty where it can."""
    if not port.active:
        return f"port {port.number} is {port.state or 'in no state'} ({port.physical or 'no link state'})"
    if port.layer == INFINIBAND:
        return "" if port.lid else f"port {port.number} has no LID: no subnet manager has configured it"
    if not port.gids:
        return f"port {port.number} has no GID: its network interface has no address in this pod's network namespace"
    if gid_index is not None and gid_index not in {gid.index for gid in port.gids}:
        there = ", ".join(f"{gid.index} ({gid.kind} {gid.ipv4 or gid.value})" for gid in port.gids)
        return f"port {port.number} has no GID at index {gid_index}; it has {there}"
    return ""


def problems(device: Device, port: int | None = None, gid_index: int | None = None) -> tuple[str, ...]:
    """Why a device cannot be used. port: None for any; one that works is enough."""
    asked = [each for each in device.ports if port is None or each.number == port]
    if not asked:
        return (*device.problems, f"it has no port {port}" if port is not None else "it has no port")
    if device.driver == EFA:
        return (
            *device.problems,
            "it is EFA, and Mooncake's packages are built without libfabric: they use verbs only",
        )
    found = [port_problem(each, gid_index) for each in asked]
    return (*device.problems, *(() if "" in found else found))


def decide(
    wanted: Wanted,
    devices: Sequence[Device],
    *,
    names: Sequence[str] = (),
    port: int | None = None,
    gid_index: int | None = None,
    lockable: int | None = None,
    least_lockable: int = 0,
) -> Decision:
    """The transport of this agent's workers. names: the only devices that may be used, empty for all.

    lockable: bytes of memory that may be locked, None for any; Auto takes TCP where they are under
    ``least_lockable``. With ``rdma`` nothing here leads to TCP: a worker that finds no device does not start.
    """
    if wanted == "tcp":
        return Decision("tcp", (), "TCP is set")
    chosen = [device for device in devices if not names or device.name in names]
    reasons = {device.name: problems(device, port, gid_index) for device in chosen}
    usable = tuple(device for device in chosen if not reasons[device.name])
    reasons |= {name: ("the kernel does not know it",) for name in names if name not in reasons}
    told = "; ".join(f"{name}: {' and '.join(each)}" for name, each in reasons.items() if each)
    listed = ", ".join(device.name for device in usable)
    if wanted == "rdma":
        return Decision("rdma", usable, f"RDMA is set; usable: {listed or 'none'}" + (f" ({told})" if told else ""))
    if not usable:
        return Decision("tcp", (), f"no usable RDMA device: {told or 'the kernel knows none'}")
    if lockable is not None and lockable < least_lockable:
        return Decision(
            "tcp",
            (),
            f"{listed} could be used, but only {lockable} bytes may be locked: raise memlock, or run the agent as "
            "root with IPC_LOCK",
        )
    return Decision("rdma", usable, f"usable: {listed}" + (f" ({told})" if told else ""))


def distance(place: Place, device: Device) -> int:
    """How far a device is from a place; smaller is nearer, and only the order counts.

    Behind a common PCIe bridge by the bridges between them; then the same NUMA node; then one that is not known;
    then another node.
    """
    shared = 0
    for ours, theirs in zip(place.pci, device.pci, strict=False):
        if ours != theirs:
            break
        shared += 1
    if shared >= 2:  # more than the root complex
        return len(place.pci) + len(device.pci) - 2 * shared
    if place.numa is None or device.numa is None:
        return 200
    return 100 if place.numa == device.numa else 300


def assign(places: Sequence[Place], devices: Sequence[Device]) -> list[tuple[str, ...]]:
    """For each rank its devices, best first: the nearest ones, each taken by as few ranks as can be.

    Ranks that are equally near to several devices share them out, one each while there are enough; a rank alone among
    its equals gets all of them.
    """
    near = [_nearest(place, devices) for place in places]
    given: list[tuple[str, ...]] = []
    for rank, names in enumerate(near):
        peers = [other for other, theirs in enumerate(near) if theirs == names]
        at = peers.index(rank)
        share = names[at :: len(peers)]
        given.append(share or ((names[at % len(names)],) if names else ()))
    return given


def _nearest(place: Place, devices: Sequence[Device]) -> tuple[str, ...]:
    if not devices:
        return ()
    least = min(distance(place, device) for device in devices)
    near = [device for device in devices if distance(place, device) == least]
    # A slow management port beside fast ones is not worth a share.
    fastest = max(device.gbit for device in near)
    return tuple(device.name for device in near if device.gbit == fastest)
