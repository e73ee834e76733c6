"""`python -m tests.rdma.run [PART...]`: boots guests and runs the tests over verbs in them, part by part."""

import argparse
import os
import sys
import time
from collections.abc import Sequence

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
    parser.add_argument("--seconds", type=float, default=400, help="limit of each part (400)")
    parser.add_argument("-k", dest="wanted", default="", help="pytest's -k")
    options = parser.parse_args(arguments)
    result = 0
    for name in options.parts or PARTS:
        nodes, command = PARTS[name]
        wanted = ("-k", options.wanted) if options.wanted else ()
        environment = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "PYTHONPATH") if key in os.environ}
        began = time.monotonic()
        job = Job(
            command=(*command, *wanted), nodes=nodes, seconds=options.seconds, processors=2 if nodes == 1 else 1,
            environment={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            status = run(job)
        except (GuestError, SetupError) as error:
            sys.stderr.write(f"rdma-test: {error}\n")
            return 125
        sys.stderr.write(f"rdma-test: {name}: status {status}, {time.monotonic() - began:.0f} s\n")
        result = result or status
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
