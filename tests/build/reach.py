"""Who can open a connection to which port of a pod: asked from inside other pods."""

from __future__ import annotations

import json

from tools.demo.kubectl import Kubectl
from tools.demo.readback import PYTHON

# Of Mooncake, as the chart's NetworkPolicy has it.
DATA_PORTS = range(15000, 17001)
_LISTENING = """
import json
lines = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]]
print(json.dumps(sorted({int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A"})))
"""
_OPEN = """
import json, socket, sys
found = []
for host, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError:
        continue
    found.append([host, port])
print(json.dumps(found))
"""

Port = tuple[str, int]


def listening(kubectl: Kubectl, pod: str) -> list[int]:
    """TCP ports on which something in that pod listens, by its agent's container."""
    return list(json.loads(kubectl("exec", pod, "-c", "weightsync-agent", "--", PYTHON, "-c", _LISTENING)))


def reached(kubectl: Kubectl, pod: str, container: str, ports: set[Port]) -> set[Port]:
    """Those of the ports that answer to that container."""
    words = ("exec", pod, "-c", container, "--", PYTHON, "-c", _OPEN, json.dumps(sorted(ports)))
    return {(host, port) for host, port in json.loads(kubectl(*words, seconds=60 + 4 * len(ports)))}
