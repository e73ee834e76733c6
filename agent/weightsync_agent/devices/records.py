"""What is known of an RDMA device. Pure."""

from dataclasses import dataclass, field

ACTIVE = "ACTIVE"
INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"  # EFA's is "Unspecified"


@dataclass(frozen=True)
class Gid:
    """One entry of a port's GID table that is not empty. kind: ``IB``, ``RoCE v1`` or ``RoCE v2``."""

    index: int
    value: str
    kind: str
    interface: str = ""  # the network interface whose address it is; none on InfiniBand

    @property
    def ipv4(self) -> str:
        """The IPv4 address that it holds, empty where it holds none."""
        parts = self.value.split(":")
        if parts[:5] != ["0000"] * 5 or parts[5] != "ffff":
            return ""
        digits = "".join(parts[6:])
        return ".".join(str(int(digits[at : at + 2], 16)) for at in range(0, 8, 2))

    @property
    def link_local(self) -> bool:
        """An address of fe80::/10, which another network cannot reach."""
        return self.value.startswith(("fe8", "fe9", "fea", "feb"))


@dataclass(frozen=True)
class Port:
    """One port. gbit: link speed, 0 where it is not said; mtu: bytes of the network interface behind it."""

    number: int
    state: str
    physical: str
    layer: str
    gbit: float
    lid: int = 0
    mtu: int | None = None
    gids: tuple[Gid, ...] = ()

    @property
    def active(self) -> bool:
        """It carries data."""
        return self.state == ACTIVE


@dataclass(frozen=True)
class Device:
    """One device. numa: None where the machine has one node or does not say; pci: the path of bridges to it."""

    name: str
    ports: tuple[Port, ...]
    numa: int | None = None
    pci: tuple[str, ...] = ()
    uverbs: str = ""  # the file below /dev/infiniband that opens it
    driver: str = ""
    firmware: str = ""
    max_mr_bytes: int | None = None  # None: was not asked
    problems: tuple[str, ...] = field(default=())  # why this pod cannot use it, sentences

    @property
    def gbit(self) -> float:
        """The speed of its fastest active port."""
        return max((port.gbit for port in self.ports if port.active), default=0.0)
