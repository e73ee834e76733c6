"""Devices as /sys tells of them. Reads files below the root that it is given, and nothing else."""

import re
from pathlib import Path

from weightsync_agent.devices.records import Device, Gid, Port

SYS = Path("/sys")
NO_GID = ":".join(["0000"] * 8)
_PCI = re.compile(r"^(pci)?[0-9a-f]{4}:[0-9a-f]{2}(:[0-9a-f]{2}\.[0-7])?$")
_KINDS = {"IB/RoCE v1": "RoCE v1", "RoCE v2": "RoCE v2"}


def discover(root: Path = SYS) -> tuple[Device, ...]:
    """All RDMA devices, by name. Empty where the kernel knows none."""
    opened = {_read(each / "ibdev"): each.name for each in _folders(root / "class" / "infiniband_verbs")}
    return tuple(_device(root, folder, opened) for folder in _folders(root / "class" / "infiniband"))


def pci_path(folder: Path) -> tuple[str, ...]:
    """Root complex, bridges and function on the way to a PCI function, from its folder: outermost first."""
    return tuple(part for part in folder.resolve().parts if _PCI.match(part))


def _device(root: Path, folder: Path, opened: dict[str, str]) -> Device:
    numa = _read(folder / "device" / "numa_node")
    driver = folder / "device" / "driver"
    return Device(
        name=folder.name,
        ports=tuple(_port(root, port) for port in _folders(folder / "ports")),
        numa=int(numa) if numa.isdigit() else None,  # -1: the machine does not say
        pci=pci_path(folder / "device"),
        uverbs=opened.get(folder.name, ""),
        driver=driver.resolve().name if driver.exists() else "",
        firmware=_read(folder / "fw_ver"),
    )


def _port(root: Path, folder: Path) -> Port:
    layer = _read(folder / "link_layer")
    gids = tuple(gid for entry in _numbered(folder / "gids") if (gid := _gid(folder, entry.name, layer)))
    interfaces = sorted({gid.interface for gid in gids} - {""})
    mtu = _read(root / "class" / "net" / interfaces[0] / "mtu") if interfaces else ""
    lid = _read(folder / "lid")
    return Port(
        number=int(folder.name),
        state=_word(_read(folder / "state")),
        physical=_word(_read(folder / "phys_state")),
        layer=layer,
        gbit=_gbit(_read(folder / "rate")),
        lid=int(lid, 16) if lid else 0,
        mtu=int(mtu) if mtu else None,
        gids=gids,
    )


def _gid(port: Path, index: str, layer: str) -> Gid | None:
    value = _read(port / "gids" / index)
    if value in {"", NO_GID}:
        return None
    said = _read(port / "gid_attrs" / "types" / index)
    kind = "IB" if layer == "InfiniBand" else _KINDS.get(said, said)
    return Gid(int(index), value, kind, _read(port / "gid_attrs" / "ndevs" / index))


def _word(line: str) -> str:
    """``4: ACTIVE`` is ACTIVE."""
    return line.partition(":")[2].strip() or line


def _gbit(line: str) -> float:
    found = re.match(r"([\d.]+) Gb/sec", line)
    return float(found[1]) if found else 0.0


def _read(path: Path) -> str:
    """A file's line; empty where there is none. The kernel answers EINVAL for the attributes of an empty GID."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted((each for each in parent.iterdir() if each.is_dir()), key=_order)


def _numbered(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted((each for each in parent.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))


def _order(path: Path) -> tuple[str, int]:
    """mlx5_2 before mlx5_10."""
    name, number = re.fullmatch(r"(.*?)(\d*)", path.name).groups()  # type: ignore[union-attr]
    return name, int(number or 0)
