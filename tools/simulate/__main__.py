"""Start of `python -m tools.simulate`."""

from __future__ import annotations

import os
import sys

# The machines iterate over sets: a seed means the same schedule only with the same hashing of strings.
if os.environ.get("PYTHONHASHSEED") != "0":
    os.execve(  # noqa: S606 - this very program again
        sys.executable, [sys.executable, "-m", "tools.simulate", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
    )

from tools.simulate.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
