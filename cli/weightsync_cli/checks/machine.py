"""What this pod has: software, devices, memory, ports. No byte is sent."""

import os
import socket
from pathlib import Path

from weightsync.errors import TransferError
from weightsync_agent.devices.choice import Decision, problems
from weightsync_agent.devices.records import ETHERNET, Device
from weightsync_agent.devices.verbs import Lockable
from weightsync_agent.settings import Settings
from weightsync_agent.transfer import capabilities
from weightsync_cli.checks.finding import Finding, Status

GIB = 1 << 30
FREE_PORTS = 20  # as many as workers need over their restarts


def mooncake() -> Finding:
    """The transfer engine, in a version whose writes are done when they have landed."""
    try:
        version = capabilities.installed()
    except TransferError as error:
        return Finding("mooncake", "failed", str(error), "install the extra weightsync[agent], or use our image")
    if capabilities.release(version) < capabilities.MINIMUM:
        least = ".".join(map(str, capabilities.MINIMUM))
        return Finding("mooncake", "failed", f"{version} is older than {least}", f"install {least} or newer")
    return Finding("mooncake", "ok", version)


def devices(found: tuple[Device, ...], settings: Settings, decision: Decision) -> list[Finding]:
    """One for each device that may be used, and one for the transport that they make."""
    needed = settings.transport == "rdma"
    listed = [
        _device(each, settings) for each in found if not settings.device_names or each.name in settings.device_names
    ]
    if not listed:
        why = f"the kernel knows no RDMA device {settings.devices}".rstrip()
        listed = [
            Finding("devices", "failed" if needed else "ok", f"{why}: bytes can only go over TCP",
                    "load the device's driver on the node" if needed else "")
        ]  # fmt: skip
    return [*listed, _transport(settings, decision)]


def _device(device: Device, settings: Settings) -> Finding:
    name = f"device {device.name}"
    why = problems(device, settings.device_port, settings.gid_index)
    if why:
        status: Status = "failed" if settings.transport == "rdma" or settings.device_names else "warning"
        return Finding(name, status, "; ".join(why), _device_remedy(" ".join(why)))
    told = [f"{device.gbit:g} Gb/s"] if device.gbit else []
    told += [f"NUMA node {device.numa}"] if device.numa is not None else []
    told += [f"driver {device.driver}"] if device.driver else []
    if device.max_mr_bytes is not None:
        told.append(f"memory regions up to {_size(device.max_mr_bytes)}, larger arenas are split")
    for port in device.ports:
        gids = ", ".join(f"{gid.index}: {gid.kind} {gid.ipv4 or gid.value}" for gid in port.gids)
        mtu = f", MTU {port.mtu}" if port.mtu else ""
        told.append(f"port {port.number} {port.layer} {port.state}{mtu}, GIDs {gids or 'none'}")
    ethernet = [gid for port in device.ports if port.layer == ETHERNET for gid in port.gids]
    if ethernet and all(gid.link_local for gid in ethernet):
        remedy = "give its interface an address in this pod (an RDMA-capable CNI): link-local GIDs cross no router"
        return Finding(name, "warning", "; ".join(told), remedy)
    return Finding(name, "ok", "; ".join(told))


_REMEDIES = (
    ("it is EFA", "use a Mooncake that was built with EFA, WEIGHTSYNC_TRANSPORT=rdma and WEIGHTSYNC_DEVICES; or TCP"),
    ("not in this container", "ask for the device in the pod's resources, in the agent's container (docs/rdma.md)"),
    ("no GID at index", "set WEIGHTSYNC_GID_INDEX to an index that is listed, of the same kind on all nodes"),
    ("no GID", "use an RDMA-capable CNI (Multus with sriov, macvlan or host-device), or hostNetwork"),
    ("no LID", "start a subnet manager (opensm) on the fabric"),
    ("DOWN", "check the cable and the switch's port; `ip link set <interface> up` on the node"),
    ("ibverbs", "install libibverbs1 and ibverbs-providers in the image"),
    ("ib_uverbs", "`modprobe ib_uverbs` on the node"),
    ("has no port", "set WEIGHTSYNC_DEVICE_PORT to a port that the device has, or leave it out"),
)


def _device_remedy(why: str) -> str:
    return next((remedy for part, remedy in _REMEDIES if part in why), "see docs/rdma.md, diagnosis by symptom")


def _transport(settings: Settings, decision: Decision) -> Finding:
    said = f"{decision.transport} (WEIGHTSYNC_TRANSPORT={settings.transport}): {decision.why}"
    if settings.transport == "rdma" and not decision.devices:
        return Finding(
            "transport", "failed", said, "mend a device above, or set WEIGHTSYNC_TRANSPORT=tcp on all agents"
        )
    if settings.transport == "auto" and decision.transport == "tcp":
        return Finding("transport", "warning", said, "mend a device above if this pod should use RDMA")
    return Finding("transport", "ok", said)


def memlock(lockable: Lockable, needed: int, transport: str) -> Finding:
    """Registered memory is locked. needed: bytes of the arenas, 0 where that is not known."""
    if lockable.nbytes is None:
        return Finding("memlock", "ok", "any amount of memory may be locked")
    said = f"{_size(lockable.nbytes)} may be locked"
    if transport == "tcp":
        return Finding("memlock", "ok", f"{said}; TCP locks none")
    remedy = (
        "raise the runtime's limit (LimitMEMLOCK=infinity of containerd's unit), or run the agent's container as "
        "root with the capability IPC_LOCK (agent.injection.ipcLock), which counts for root alone"
    )
    if lockable.covers(max(needed, GIB)):
        return Finding("memlock", "ok", said)
    return Finding("memlock", "failed", f"{said}, which holds no arena", remedy)


def shared_memory(directory: Path, mounts: str) -> Finding:
    """The volume of the arenas. mounts: text of /proc/mounts."""
    remedy = "mount the pod's volume (emptyDir, medium: Memory) there, or set WEIGHTSYNC_DIR"
    if not directory.is_dir():
        return Finding("shared memory", "failed", f"{directory} is not here", remedy)
    if not os.access(directory, os.W_OK):
        return Finding("shared memory", "failed", f"{directory} cannot be written to", "mount it read-write")
    room = os.statvfs(directory)
    free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    said = f"{directory}: {_size(free)} free of {_size(total)}"
    kind = _file_system(directory, mounts)
    if kind not in {"tmpfs", "hugetlbfs", "ramfs"}:
        return Finding("shared memory", "warning", f"{said}, on {kind or 'an unknown file system'}", remedy)
    if free < 64 << 20:
        return Finding("shared memory", "failed", said, "raise the volume's sizeLimit and the agent's memory limit")
    return Finding("shared memory", "ok", said)


def _file_system(directory: Path, mounts: str) -> str:
    found, kind = Path(), ""
    for line in mounts.splitlines():
        _, at, each = line.split()[:3]
        place = Path(at)
        if (directory == place or place in directory.parents) and len(place.parts) >= len(found.parts):
            found, kind = place, each
    return kind


def hugepages(shmem_enabled: str) -> Finding:
    """Whether the kernel gives the volume huge pages: fewer entries in a device's tables. shmem_enabled: of sysfs."""
    chosen = shmem_enabled.partition("[")[2].partition("]")[0]
    if not chosen:
        return Finding("huge pages", "ok", "this kernel has none for shared memory")
    if chosen in {"always", "within_size", "force"}:
        return Finding("huge pages", "ok", f"shared memory takes them ({chosen})")
    return Finding(
        "huge pages", "ok", f"shared memory takes none ({chosen})",
        "optional: `echo within_size > /sys/kernel/mm/transparent_hugepage/shmem_enabled` on the node",
    )  # fmt: skip


def ports(low: int, high: int) -> Finding:
    """Whether enough of the workers' range can be bound."""
    free = 0
    for number in range(low, high + 1):
        free += _bindable(number)
        if free == FREE_PORTS:
            return Finding("ports", "ok", f"{low} to {high}: at least {free} are free")
    return Finding(
        "ports", "failed", f"{low} to {high}: only {free} are free",
        f"end what listens there, or set WEIGHTSYNC_TRANSFER_PORTS to a range with {FREE_PORTS} free ports, and open "
        "it in the NetworkPolicy",
    )  # fmt: skip


def _bindable(number: int) -> bool:
    with socket.socket() as found:
        try:
            found.bind(("", number))
        except OSError:
            return False
    return True


def _size(nbytes: int) -> str:
    for unit, name in ((1 << 50, "PiB"), (1 << 40, "TiB"), (GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} bytes"
