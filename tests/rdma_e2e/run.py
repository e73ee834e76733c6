"""`python -m tests.rdma_e2e.run`: a cluster of two guests, the chart, a trainer and engines, weights over verbs."""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.rdma_e2e import mounted, site
from tests.rdma_e2e.trial import Trial, TrialError
from tools.cluster.errors import ClusterError
from tools.demo import diagnosis
from tools.demo.errors import DemoError
from tools.demo.kubectl import Kubectl
from tools.demo.site import kubectl
from tools.guest.errors import GuestError
from tools.guest_cluster import cluster, store
from tools.images import build
from tools.report import writing
from tools.setup import commands, helm
from tools.setup.errors import SetupError

LINES = 30


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 1 where something does not hold, 125 where guests or cluster did not come up."""
    parser = argparse.ArgumentParser(prog="tests.rdma_e2e.run", description=__doc__)
    parser.add_argument("--seconds", type=int, default=1200, help="limit of all that runs in guests (1200)")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        _run(options.seconds)
    except TrialError as error:
        sys.stderr.write(f"rdma-e2e: does not hold: {error}\n")
        return 1
    except (ClusterError, DemoError, GuestError, SetupError, OSError) as error:
        sys.stderr.write(f"rdma-e2e: {error}\n")
        return 125
    sys.stderr.write(f"rdma-e2e: all holds, {time.monotonic() - began:.0f} s\n")
    return 0


def _run(seconds: int) -> None:
    found = cluster.programs()
    images = store.prepare(build.prepare(site.ROOT), found)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weightsync-rdma-e2e-")))
        mounts = mounted.prepare(folder)
        stack.enter_context(_limited(seconds))
        # From here on everything is at the wire, which leads to no proxy.
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"
        guests = stack.enter_context(cluster.running(2, images, found, folder / "out"))
        asked = Kubectl(kubectl(), guests.kubeconfig, site.NAMESPACE)
        trial = Trial(site.Site(guests, asked, helm.executable(), mounts.models), mounts, folder)
        try:
            trial.run()
        except Exception:
            # Not for Ctrl-C: who gives up wants no logs.
            log = folder / "operator.log"
            said = commands.tail(log) if log.exists() else "(not started)"
            sys.stderr.write(f"{guests.tails()}\n--- operator.log\n{said}\n{diagnosis.describe(asked, LINES)}\n")
            raise
        finally:
            if trial.measures:
                writing.write("rdma-e2e", "cluster", trial.measures)


@contextlib.contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Raises GuestError in the block when the time is over."""

    def over(number: int, frame: object) -> None:
        raise GuestError(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
