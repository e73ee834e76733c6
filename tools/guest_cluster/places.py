"""Names, addresses and ports of the guests' cluster, which has a network namespace to itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tools.cluster import layout
from tools.cluster.layout import Layout
from tools.guest import wire

# The API server itself answers at the first address of the range of services, on the port of the service
# `kubernetes`: pods reach it there without anybody who translates addresses.
PORTS = replace(layout.NODE_PORTS, api=443)
IN_GUEST = Layout(layout.NODE_FOLDER, PORTS)  # a tmpfs there: overlays cannot be laid on the guest's root
RESOURCE = "rdma/hca_shared_devices_a"


@dataclass(frozen=True)
class Node:
    """Guest ``number``, counted from 1, as a node."""

    number: int

    @property
    def name(self) -> str:
        """Also the guest's host name."""
        return f"guest-{self.number}"

    @property
    def address(self) -> str:
        """On the wire; the device's GID is made of it."""
        return wire.address(self.number)

    @property
    def pods(self) -> str:
        """The range of its pods' addresses."""
        return layout.NODE_POD_RANGE.replace(".0.0/", f".{self.number}.0/")


def nodes(count: int) -> list[Node]:
    """The first so many."""
    return [Node(number) for number in range(1, count + 1)]
