"""Ports for processes that are started, and started again, while other worlds on the machine look for theirs."""

import secrets
import socket
from contextlib import ExitStack

from tools.world.pod import HOST

# Below the range from which the kernel gives ports to outgoing connections: between our look and the bind it could
# give one of those away. And above Mooncake's.
PORTS = range(18000, 30000)


class NoPort(Exception):
    """Every port is claimed or in use."""


class Ports(ExitStack):
    """Ports that are this object's until it is closed, even while nobody listens there: a process that was killed
    gets its own again. Use as a context manager, or close()."""

    def take(self) -> int:
        """A port that nobody has claimed and nobody listens on. Raises NoPort."""
        for number in secrets.SystemRandom().sample(PORTS, len(PORTS)):
            if self._claim(number):
                return number
        raise NoPort(f"no port of {PORTS.start} to {PORTS.stop} is free")

    def _claim(self, number: int) -> bool:
        # A name that only one process of a network namespace can have, and that its end gives back.
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0weightsync-port-{number}")
            with socket.socket() as found:
                found.bind((HOST, number))
        except OSError:
            claim.close()
            return False
        self.enter_context(claim)
        return True
