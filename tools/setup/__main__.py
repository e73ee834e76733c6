"""Start of `python3 tools/setup PART...`.

Only this module and `interpreter` must also run under an old Python: they look for one that is new enough and
start over with it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Started as a folder, sys.path[0] is that folder: the packages below `tools` are found from the root.
sys.path[0] = str(ROOT)

from tools.setup import interpreter  # noqa: E402


def start() -> int:
    """Run the command line, under another interpreter where this one is too old. Returns the exit status."""
    if sys.version_info < interpreter.LOWEST:
        try:
            python = interpreter.find()
        except interpreter.NoInterpreterError as error:
            sys.stderr.write("set-up: " + str(error) + "\n")
            return 1
        os.execv(str(python), [str(python), str(Path(__file__).parent), *sys.argv[1:]])  # noqa: S606
    from tools.setup.parts import main  # noqa: PLC0415

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(start())
