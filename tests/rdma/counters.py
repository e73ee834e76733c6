"""What the device itself counted."""

import os
from pathlib import Path

PACKET = 4096  # payload bytes at most, with the wire's MTU


def sent_packets() -> int:
    """Packets that the guest's device has sent."""
    device = os.environ["GUEST_DEVICE"]
    return int(Path(f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts").read_text())
