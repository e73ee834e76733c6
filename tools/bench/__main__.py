"""Start of `python tools/bench NAME`."""

from __future__ import annotations

import sys
from pathlib import Path

# Started as a folder, sys.path[0] is that folder: the packages below `tools` are found from the root.
sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench import transfer  # noqa: E402

BENCHMARKS = {"transfer": transfer.main}


def main(arguments: list[str]) -> int:
    """Run the benchmark that the first argument names."""
    if not arguments or arguments[0] not in BENCHMARKS:
        sys.stderr.write(f"usage: python tools/bench {{{','.join(BENCHMARKS)}}} [options]\n")
        return 2
    return BENCHMARKS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
