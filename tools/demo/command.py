"""The command line of the demo."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.errors import ClusterError
from tools.demo import options, run
from tools.demo.errors import DemoError
from tools.setup.errors import SetupError

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str]) -> int:
    """Run the demo. Returns the exit status: 1 where a bound is broken or where it could not go on."""
    chosen = options.parse(arguments, ROOT)
    try:
        return run.demo(chosen, ROOT)
    except (DemoError, SetupError, ClusterError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("demo: interrupted\n")
        return 130
