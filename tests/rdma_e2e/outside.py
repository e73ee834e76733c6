"""The operator outside of the guests, with the rights that the chart gives it.

Started in a guest it took over a minute, and beside other work it lost its Lease: what an emulated processor does not
manage within seconds is another holder's. Its pods are therefore left out (operator.replicas is 0).
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.demo.kubectl import Kubectl

GRACE_SECONDS = 10.0


@contextmanager
def operator(kubectl: Kubectl, account: str, folder: Path) -> Iterator[None]:
    """Runs during the block, as that service account of kubectl's namespace. Its log: operator.log in ``folder``."""
    config = folder / "operator.kubeconfig"
    config.write_text(json.dumps(_as_account(kubectl, account)))
    environment = {
        **os.environ,
        "KUBECONFIG": str(config),
        "POD_NAMESPACE": kubectl.namespace,
        "WEIGHTSYNC_OPERATOR_NAMESPACES": kubectl.namespace,
        "WEIGHTSYNC_OPERATOR_LEASE_NAME": account,
        "WEIGHTSYNC_OPERATOR_LEADER_ELECTION": "true",
        "WEIGHTSYNC_OPERATOR_HEALTH_PORT": "0",
    }
    words = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "weightsync_operator"]
    with (folder / "operator.log").open("wb") as log:
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _as_account(kubectl: Kubectl, account: str) -> dict[str, Any]:
    """The administrator's kubeconfig with the account's token in place of a certificate."""
    document: dict[str, Any] = json.loads(kubectl.kubeconfig.read_text())
    (user,) = document["users"]
    token = kubectl("create", "token", account, "--duration=2h").strip()
    return {**document, "users": [{"name": user["name"], "user": {"token": token}}]}
