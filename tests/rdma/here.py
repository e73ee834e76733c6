"""A world whose pods are in this guest, at its address, with agents over its device. Loads no torch."""

import os
from pathlib import Path
from typing import Any, ClassVar

from tools.world.network import Host
from tools.world.nursery import HIDDEN, Forked
from tools.world.pod import Pod
from tools.world.processes import Child
from tools.world.world import World

PLAN = {"strategy": {"deadlineSeconds": 300}, "transfer": {"protocol": "RDMA"}}
# Emulated: what takes a tenth of a second elsewhere takes seconds.
PATIENT = {
    "WEIGHTSYNC_STALL_SECONDS": "60",
    "WEIGHTSYNC_COMMIT_SECONDS": "240",
    "WEIGHTSYNC_WORKER_START_SECONDS": "240",
    "WEIGHTSYNC_CONTACT_SECONDS": "60",
    "WEIGHTSYNC_PROBE_SECONDS": "5",
}


class Here:
    """Stands for a network that gives pods addresses: all of ours have this guest's."""

    def join(self, name: str) -> Host:
        """This guest."""
        return Host("", os.environ["GUEST_ADDRESS"], ())


class GuestWorld(World):
    """See the module. agents: of their environment, over PATIENT; secret: that of agents in another guest."""

    start_seconds = 600.0  # programs start slowly here
    child: ClassVar[type[Child]] = Forked

    def __init__(self, secret: str = "", **agents: str) -> None:
        super().__init__(PLAN, {**PATIENT, **agents}, network=Here())  # type: ignore[arg-type]
        if secret:
            self.secret = secret
            self._secret_file.write_text(secret)

    def engine_without_device(self, name: str, model: Path) -> Pod:
        """An engine's pod that did not ask for a device: it sees it, and has no file to open it by."""
        hidden: dict[str, Any] = {HIDDEN: "/dev/infiniband"}
        return self.engine(name, model, **hidden)
