"""Over which transport one source rank writes to one target rank. Pure.

The target decides in the handshake, where its own devices are known as they are now; of the sources' devices it knows
what their agents announced.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from weightsync.errors import Refused
from weightsync.plan import Protocol
from weightsync.wire.v1 import Transport

NO_DEVICE = "NoDevice"


@dataclass(frozen=True)
class Side:
    """One end of a route. devices: that it can use; why: what it lacks, where there are none; tcp: if it may."""

    name: str
    devices: tuple[str, ...] = ()
    why: str = ""
    tcp: bool = True

    def only(self, names: Sequence[str]) -> "Side":
        """Without devices that may not be used. names: empty for all."""
        left = tuple(device for device in self.devices if not names or device in names)
        if left or not self.devices:
            return Side(self.name, left, self.why, self.tcp)
        why = f"it has {', '.join(self.devices)}, and only {', '.join(names)} may be used"
        return Side(self.name, (), why, self.tcp)


@dataclass(frozen=True)
class Choice:
    """why: what RDMA lacks, where it was wished for and is not taken."""

    transport: Transport
    why: str = ""


def choose(protocol: Protocol, source: Side, target: Side) -> Choice:
    """Raises Refused, reason NoDevice, where the only transport that is allowed cannot be had."""
    if protocol == "TCP":
        if not target.tcp:
            raise Refused(
                f"transfer.protocol is TCP, and {target.name} takes RDMA only: set WEIGHTSYNC_TRANSPORT=auto there, "
                "or change transfer.protocol",
                reason=NO_DEVICE,
            )
        return Choice("tcp")
    lacking = [side for side in (source, target) if not side.devices]
    if not lacking:
        return Choice("rdma")
    why = "; ".join(
        f"{side.name} has no RDMA device that it can use ({side.why or 'none announced'})" for side in lacking
    )
    if protocol == "RDMA" or not target.tcp:
        wanted = "transfer.protocol is RDMA" if protocol == "RDMA" else f"{target.name} takes RDMA only"
        raise Refused(
            f"{wanted}, and {why}: give the agent's container a device (weightsync preflight names what is missing), "
            "or set transfer.protocol to Auto",
            reason=NO_DEVICE,
        )
    return Choice("tcp", why)
