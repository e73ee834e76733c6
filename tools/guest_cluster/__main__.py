"""The command line: `python -m tools.guest_cluster -- kubectl get nodes`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.errors import ClusterError
from tools.guest.errors import GuestError
from tools.guest_cluster import cluster, store
from tools.images import build
from tools.setup import progress
from tools.setup.errors import SetupError

ROOT = Path(__file__).resolve().parents[2]
DESCRIPTION = """\
Start a Kubernetes whose nodes are emulated guests with an RDMA device that pods can ask for, and run COMMAND on this
machine, with KUBECONFIG set and the pods' addresses within reach. At its end all of it is gone. Needs root.
"""


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: COMMAND's, or 125 where the cluster did not come up."""
    parser = argparse.ArgumentParser(prog="tools.guest_cluster", description=DESCRIPTION)
    parser.add_argument("--nodes", type=int, default=2, help="guests (2)")
    parser.add_argument("--memory", default="3G", help="of each guest (3G)")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args(arguments)
    try:
        found = cluster.programs()
        images = store.prepare(build.prepare(ROOT), found)
        with (
            tempfile.TemporaryDirectory(prefix="weightsync-out-") as out,
            cluster.running(options.nodes, images, found, Path(out), memory=options.memory) as guests,
        ):
            with progress.step("cluster in guests") as step:
                try:
                    guests.wait_until_ready()
                except (ClusterError, GuestError):
                    sys.stderr.write(f"{guests.tails()}\n")
                    raise
                step.end("ready")
            # The wire leads to no proxy.
            environment = {**os.environ, "NO_PROXY": "*", "no_proxy": "*", "KUBECONFIG": str(guests.kubeconfig)}
            return subprocess.run(options.command, env=environment, check=False).returncode
    except (ClusterError, GuestError, SetupError) as error:
        sys.stderr.write(f"guest-cluster: {error}\n")
        return 125


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
