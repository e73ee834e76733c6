"""Asking each engine's agent to read the weights back, from inside the agent's container: so on any cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from tools.demo.errors import DemoError
from tools.demo.figures import Readback
from tools.demo.kubectl import Kubectl

PYTHON = "/opt/weightsync/bin/python"
# The agent's own token proves to it who asks; the token never leaves the container.
PROGRAM = """
import urllib.request
token = open("/var/run/secrets/weightsync/token").read().strip()
request = urllib.request.Request("http://127.0.0.1:8960/v1/readback", b"{}",
    {"Content-Type": "application/json", "Authorization": "Bearer " + token})
print(urllib.request.urlopen(request, timeout=30).read().decode())
"""


def read(kubectl: Kubectl, pod: str) -> Readback:
    """Version and whether the engine's parameters are that version's bytes. Raises DemoError."""
    answer = json.loads(kubectl("exec", pod, "--container", "weightsync-agent", "--", PYTHON, "-c", PROGRAM))
    return Readback(pod, answer["version"], answer["digestOk"])


def read_all(kubectl: Kubectl, pods: Sequence[str], version: str | None, seconds: float) -> list[Readback]:
    """All of them; asked again until each holds ``version`` (None: whichever), or until the time is over.

    Raises DemoError for those that never answered: an engine in the middle of a sync refuses.
    """
    deadline = time.monotonic() + seconds
    found: dict[str, Readback] = {}
    while True:
        problem = ""
        for pod in pods:
            if pod in found and _is_right(found[pod], version):
                continue
            try:
                found[pod] = read(kubectl, pod)
            except DemoError as error:
                problem = str(error)
        if sum(_is_right(one, version) for one in found.values()) == len(pods) or time.monotonic() > deadline:
            break
        time.sleep(1.0)
    if len(found) < len(pods):
        raise DemoError(f"{len(pods) - len(found)} engines could not be read back within {seconds:.0f} s: {problem}")
    return [found[pod] for pod in pods]


def _is_right(one: Readback, version: str | None) -> bool:
    return one.digest_ok and version in (None, one.version)
