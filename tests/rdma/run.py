"""`python -m tests.rdma.run [PART...]`: boots guests and runs the tests over verbs in them, part by part.

Parts that want as many guests share a boot where they follow one another.
"""

import argparse
import compileall
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.rdma import far
from tools.guest.errors import GuestError
from tools.guest.run import Job, run
from tools.setup.errors import SetupError
from tools.world.processes import CODE, ROOT

# What pytest would load by itself costs a guest half a minute; nothing here needs it.
PYTEST = (
    "pytest", "-v", "--maxfail=1", "--assert=plain", "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin",
    "-p", "pytest_timeout", "--durations=0", "--durations-min=1",
)  # fmt: skip
# Asked for by the shell: an interpreter would import for half a minute.
END = f"""exec 3<>/dev/tcp/{far.ADDRESS}/{far.PORT}; echo '{{"call": "end"}}' >&3; read -r said <&3"""
# What the tests and a second guest import beside a world's programs.
IMPORTED = (
    "weightsync_cli.preflight", "weightsync.publisher", "tools.world.world", "pytest", "pytest_asyncio.plugin",
    "pytest_timeout",
)  # fmt: skip
# Guests, and the file of tests.
PARTS = {
    "one": (1, "tests/rdma/test_one_guest.py"),
    "world": (1, "tests/rdma/test_one_world.py"),
    "two": (2, "tests/rdma/test_two_guests.py"),
    "worlds": (2, "tests/rdma/test_two_worlds.py"),
}
# Compiled here, at full speed.
COMPILED = (*CODE, ROOT / "tools", ROOT / "tests" / "rdma", ROOT / "tests" / "integration" / "transfer")


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: that of the first parts that failed."""
    parser = argparse.ArgumentParser(prog="tests.rdma.run", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--seconds", type=float, default=1200, help="limit of the guests of each boot (1200)")
    parser.add_argument("-k", dest="wanted", default="", help="pytest's -k")
    options = parser.parse_args(arguments)
    more = ("-k", options.wanted) if options.wanted else ()
    for folder in COMPILED:
        compileall.compile_dir(folder, quiet=2, workers=1)
    result = 0
    for nodes, parts in itertools.groupby(options.parts or PARTS, lambda name: PARTS[name][0]):
        names = list(parts)
        began = time.monotonic()
        try:
            status = _boot(nodes, names, options.seconds, more)
        except (GuestError, SetupError) as error:
            sys.stderr.write(f"rdma-test: {error}\n")
            return 125
        sys.stderr.write(f"rdma-test: {', '.join(names)}: status {status}, {time.monotonic() - began:.0f} s\n")
        result = result or status
    return result


def _boot(nodes: int, parts: Sequence[str], seconds: float, more: Sequence[str]) -> int:
    environment = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "PYTHONPATH") if key in os.environ}
    # Numpy stands for torch, which loads for minutes there.
    light = str(Path(__file__).with_name("light"))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (light, environment.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory(prefix="weightsync-rdma-") as out:
        if any("world" in part for part in parts):
            # Here, at full speed.
            subprocess.run([sys.executable, "-m", "tests.rdma.plane", f"{out}/model"], check=True)
        return run(
            Job(
                command=_command(nodes, parts, more), nodes=nodes, out=Path(out), seconds=seconds,
                processors=2 if nodes == 1 else 1,
                environment={
                    **environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1",
                    # Threads that wait for one another in a busy loop starve what they wait for.
                    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
                },
            )
        )  # fmt: skip


def _command(nodes: int, parts: Iterable[str], more: Sequence[str]) -> tuple[str, ...]:
    """What every guest runs. The second one does what the first one's tests ask of it."""
    python = [sys.executable, "-m", "tools.world.nursery", *(f"--import={module}" for module in IMPORTED)]
    tests = [*python, *PYTEST, *(PARTS[part][1] for part in parts), *more]
    if nodes == 1:
        return tuple(tests)
    pair = f'[ $GUEST_NODE = 2 ] && exec {" ".join(python)} tests.rdma.far; "$@"; status=$?; {END}; exit $status'
    return ("bash", "-c", pair, "pair", *tests)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
