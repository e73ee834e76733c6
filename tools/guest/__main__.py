"""The command line: `python -m tools.guest --nodes 2 -- COMMAND`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.guest.errors import GuestError
from tools.guest.run import Job, run
from tools.setup.errors import SetupError

DESCRIPTION = """\
Boot guests with a soft-RoCE device (rxe0) and run COMMAND in each. It sees the host's files at their paths; what it
writes goes to memory, and only the folder --out is shared back, with all guests of the run. Variables there:
GUEST_NODE (1 to GUEST_NODES), GUEST_ADDRESS, GUEST_DEVICE, OUT. The exit status is COMMAND's (of several guests the
first that is not 0), 124 at the time limit, 125 where a guest did not come up or died.
"""


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="tools.guest", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1, help="guests on one wire; more than one needs root (1)")
    parser.add_argument("--out", type=Path, help="the shared folder; default: one that is removed at the end")
    parser.add_argument("--seconds", type=float, default=300, help="limit of the whole run, boot included (300)")
    parser.add_argument("--memory", default="3G", help="of each guest (3G)")
    parser.add_argument("--processors", type=int, help="of each guest (2 for one guest, 1 for several)")
    parser.add_argument("--mtu", type=int, default=4200, help="of the wire; 4200 carries RDMA packets of 4096 bytes")
    parser.add_argument("--accelerator", default="tcg", help="QEMU's; kvm only where ordinary kernels boot with it")
    parser.add_argument("-e", dest="names", action="append", default=[], metavar="NAME[=VALUE]",
                        help="a variable for COMMAND; PATH, HOME, LANG, PYTHONPATH always go")  # fmt: skip
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args(arguments)
    job = Job(
        command=tuple(options.command),
        nodes=options.nodes,
        out=options.out,
        seconds=options.seconds,
        memory=options.memory,
        processors=options.processors or (2 if options.nodes == 1 else 1),
        mtu=options.mtu,
        accelerator=options.accelerator,
        environment=_environment(options.names),
    )
    try:
        return run(job)
    except (GuestError, SetupError) as error:
        sys.stderr.write(f"guest: {error}\n")
        return 125


def _environment(wanted: Sequence[str]) -> dict[str, str]:
    found = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ}
    for each in wanted:
        name, given, value = each.partition("=")
        if given or name in os.environ:
            found[name] = value if given else os.environ[name]
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
