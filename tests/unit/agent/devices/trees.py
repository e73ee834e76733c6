"""Trees of /sys as kernels show them for the usual kinds of devices, written into a folder."""

from pathlib import Path

EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
V4 = "0000:0000:0000:0000:0000:ffff:0a00:0105"
LOCAL = "fe80:0000:0000:0000:0ac0:ebff:fe12:3456"
SUBNET = "fe80:0000:0000:0000:0800:3803:00aa:bbcc"


def device(
    root: Path,
    name: str,
    *,
    number: int = 0,
    pci: tuple[str, ...] = (),
    numa: int = -1,
    driver: str = "",
    firmware: str = "",
) -> None:
    """A device without ports. pci: from the root complex to the function."""
    function = root / "devices" / "/".join(pci) if pci else root / "devices" / "virtual"
    own = function / "infiniband" / name
    (own / "ports").mkdir(parents=True)
    if pci:
        (function / "numa_node").write_text(f"{numa}\n")
        (own / "device").symlink_to(function)
        drivers = root / "bus" / "pci" / "drivers" / driver
        drivers.mkdir(parents=True, exist_ok=True)
        (function / "driver").symlink_to(drivers)
        (own / "fw_ver").write_text(f"{firmware}\n")
    known = root / "class" / "infiniband"
    known.mkdir(parents=True, exist_ok=True)
    (known / name).symlink_to(own)
    uverbs = root / "class" / "infiniband_verbs" / f"uverbs{number}"
    uverbs.mkdir(parents=True)
    (uverbs / "ibdev").write_text(f"{name}\n")
    (uverbs.parent / "abi_version").write_text("6\n")


def port(
    root: Path,
    name: str,
    *,
    state: str = "4: ACTIVE",
    physical: str = "5: LinkUp",
    layer: str = "Ethernet",
    rate: str = "100 Gb/sec (4X EDR)",
    lid: str = "0x0",
    gids: dict[int, tuple[str, str, str]] | None = None,
    number: int = 1,
) -> None:
    """A port. gids: index -> value, type, interface; the table has 16 entries, the rest is empty."""
    folder = root / "class" / "infiniband" / name / "ports" / str(number)
    for part in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (folder / part).mkdir(parents=True)
    said = {"state": state, "phys_state": physical, "link_layer": layer, "rate": rate, "lid": lid}
    for file, text in said.items():
        (folder / file).write_text(f"{text}\n")
    for index in range(16):
        value, kind, interface = (gids or {}).get(index, (EMPTY, "", ""))
        (folder / "gids" / str(index)).write_text(f"{value}\n")
        if kind:  # of an empty entry the kernel lets nobody read these
            (folder / "gid_attrs" / "types" / str(index)).write_text(f"{kind}\n")
            (folder / "gid_attrs" / "ndevs" / str(index)).write_text(f"{interface}\n")


def interface(root: Path, name: str, mtu: int) -> None:
    """A network interface."""
    folder = root / "class" / "net" / name
    folder.mkdir(parents=True)
    (folder / "mtu").write_text(f"{mtu}\n")


def infiniband(root: Path) -> None:
    """ConnectX-6 on an InfiniBand fabric, NUMA node 1, below a switch."""
    pci = ("pci0000:a0", "0000:a0:01.0", "0000:a1:00.0", "0000:a2:00.0")
    device(root, "mlx5_0", pci=pci, numa=1, driver="mlx5_core", firmware="20.35.1012")
    port(
        root, "mlx5_0", layer="InfiniBand", rate="200 Gb/sec (4X HDR)", lid="0x1a",
        gids={0: (SUBNET, "IB/RoCE v1", "")},
    )  # fmt: skip


def roce(root: Path) -> None:
    """ConnectX-7 on Ethernet: each address twice, as RoCE v1 and v2."""
    device(root, "mlx5_1", pci=("pci0000:16", "0000:16:02.0", "0000:17:00.0"), numa=0, driver="mlx5_core")
    gids = {
        0: (LOCAL, "IB/RoCE v1", "eth1"), 1: (LOCAL, "RoCE v2", "eth1"),
        2: (V4, "IB/RoCE v1", "eth1"), 3: (V4, "RoCE v2", "eth1"),
    }  # fmt: skip
    port(root, "mlx5_1", rate="400 Gb/sec (4X NDR)", gids=gids)
    interface(root, "eth1", 9000)


def efa(root: Path) -> None:
    """EFA of an EC2 instance: its link layer is not specified, and it has one GID."""
    device(root, "rdmap79s0", pci=("pci0000:43", "0000:43:00.0", "0000:4f:00.0"), numa=0, driver="efa")
    port(
        root, "rdmap79s0", layer="Unspecified", rate="100 Gb/sec (4X EDR)",
        gids={0: ("fe80:0000:0000:0000:0c5b:4bff:fe0d:0001", "RoCE v2", "")},
    )  # fmt: skip


def rxe(root: Path) -> None:
    """Soft-RoCE over eth0: no PCI function."""
    device(root, "rxe0")
    port(
        root, "rxe0", rate="1 Gb/sec (1X SDR)",
        gids={0: (LOCAL, "RoCE v2", "eth0"), 1: (V4, "RoCE v2", "eth0")},
    )  # fmt: skip
    interface(root, "eth0", 4200)


def down(root: Path) -> None:
    """RoCE with its cable out."""
    device(root, "mlx5_2", number=2, pci=("pci0000:16", "0000:16:03.0", "0000:18:00.0"), numa=0, driver="mlx5_core")
    port(root, "mlx5_2", state="1: DOWN", physical="3: Disabled", gids={0: (LOCAL, "RoCE v2", "eth2")})


def no_gid(root: Path) -> None:
    """RoCE whose interface is in another network namespace: the table is empty here."""
    device(root, "mlx5_3", number=3, pci=("pci0000:16", "0000:16:04.0", "0000:19:00.0"), numa=0, driver="mlx5_core")
    port(root, "mlx5_3")
