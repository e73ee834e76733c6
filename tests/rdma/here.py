"""A world whose pods are in this guest, at its address, with agents over its device. Loads no torch."""

import os

from tools.world.network import Host
from tools.world.world import World

PLAN = {"strategy": {"deadlineSeconds": 300}, "transfer": {"protocol": "RDMA"}}


class Here:
    """Stands for a network that gives pods addresses: all of ours have this guest's."""

    def join(self, name: str) -> Host:
        """This guest."""
        return Host("", os.environ["GUEST_ADDRESS"], ())


class GuestWorld(World):
    """See the module. secret: that of agents in another guest."""

    start_seconds = 600.0  # programs start slowly here

    def __init__(self, secret: str = "") -> None:
        agents = {
            "WEIGHTSYNC_STALL_SECONDS": "120",
            "WEIGHTSYNC_WORKER_START_SECONDS": "240",
            "WEIGHTSYNC_PROBE_SECONDS": "5",
        }
        super().__init__(PLAN, agents, network=Here())  # type: ignore[arg-type]
        if secret:
            self.secret = secret
            self._secret_file.write_text(secret)
