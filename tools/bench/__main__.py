"""Start of `python tools/bench NAME`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

# Started as a folder, sys.path[0] is that folder: the packages below `tools` are found from the root.
sys.path[0] = str(Path(__file__).resolve().parents[2])

BENCHMARKS = {
    "transfer": "tools.bench.transfer",
    "convert": "tools.bench.convert",
    "gpu": "tools.bench.gpu.command",
    "scale": "tools.bench.scale.command",
    "relay": "tools.bench.relay.command",
}


def main(arguments: list[str]) -> int:
    """Run the benchmark that the first argument names; only its module is imported, with the packages it needs."""
    if not arguments or arguments[0] not in BENCHMARKS:
        sys.stderr.write(f"usage: python tools/bench {{{','.join(BENCHMARKS)}}} [options]\n")
        return 2
    status: int = importlib.import_module(BENCHMARKS[arguments[0]]).main(arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
