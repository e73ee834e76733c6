"""`python -m tests.rdma.run [PART...]`: boots guests and runs the tests over verbs in them, part by part."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools.guest.errors import GuestError
from tools.guest.run import Job, run
from tools.setup.errors import SetupError

# What pytest would load by itself costs a guest half a minute; nothing here needs it.
PYTEST = (
    sys.executable, "-m", "pytest", "-v", "--assert=plain", "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin",
    "-p", "pytest_timeout", "--durations=0", "--durations-min=1",
)  # fmt: skip
FAR = f"{sys.executable} -m tests.rdma.far"
# The second guest does what the first one's tests ask of it.
PAIR = f'[ $GUEST_NODE = 2 ] && exec {FAR}; {" ".join(PYTEST)} "$@"; status=$?; {FAR} end; exit $status'

PARTS = {
    "one": (1, (*PYTEST, "tests/rdma/test_one_guest.py")),
    "world": (1, (*PYTEST, "tests/rdma/test_one_world.py")),
    "two": (2, ("bash", "-c", PAIR, "pair", "tests/rdma/test_two_guests.py")),
    "worlds": (2, ("bash", "-c", PAIR, "pair", "tests/rdma/test_two_worlds.py")),
}


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: that of the first part that failed."""
    parser = argparse.ArgumentParser(prog="tests.rdma.run", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--seconds", type=float, default=600, help="limit of each part (600)")
    parser.add_argument("-k", dest="wanted", default="", help="pytest's -k")
    options = parser.parse_args(arguments)
    result = 0
    for name in options.parts or PARTS:
        began = time.monotonic()
        try:
            status = _part(name, options.seconds, ("-k", options.wanted) if options.wanted else ())
        except (GuestError, SetupError) as error:
            sys.stderr.write(f"rdma-test: {error}\n")
            return 125
        sys.stderr.write(f"rdma-test: {name}: status {status}, {time.monotonic() - began:.0f} s\n")
        result = result or status
    return result


def _part(name: str, seconds: float, more: Sequence[str]) -> int:
    nodes, command = PARTS[name]
    environment = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "PYTHONPATH") if key in os.environ}
    # In the world's programs numpy stands for torch, which loads for minutes there.
    light = str(Path(__file__).with_name("light"))
    if "world" in name:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (light, environment.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory(prefix="weightsync-rdma-") as out:
        if "world" in name:
            # Here, at full speed.
            subprocess.run([sys.executable, "-m", "tests.rdma.plane", f"{out}/model"], check=True)
        return run(
            Job(
                command=(*command, *more), nodes=nodes, out=Path(out), seconds=seconds,
                processors=2 if nodes == 1 else 1,
                environment={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"},
            )
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
