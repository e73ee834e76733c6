"""The command line of the demo."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.errors import ClusterError
from tools.demo import options, run
from tools.demo.elastic import options as elastic_options
from tools.demo.elastic import run as elastic_run
from tools.demo.errors import DemoError
from tools.setup import cache, locks
from tools.setup.errors import SetupError

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str]) -> int:
    """Run the demo, or with ``elastic`` first the one of coming and going engines.

    Returns the exit status: 1 where a bound is broken or where it could not go on.
    """
    elastic = list(arguments[:1]) == ["elastic"]
    chosen = elastic_options.parse(arguments[1:], ROOT) if elastic else options.parse(arguments, ROOT)
    try:
        # One at a time: a second one would take the first one's namespace for what an old run left.
        with locks.exclusive(cache.root() / "demo.lock", _say_waiting):
            if isinstance(chosen, elastic_options.ElasticOptions):
                return elastic_run.demo(chosen, ROOT)
            return run.demo(chosen, ROOT)
    except (DemoError, SetupError, ClusterError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("demo: interrupted\n")
        return 130


def _say_waiting(holder: str) -> None:
    sys.stderr.write(f"demo: {holder} runs one already; this one begins when that has ended\n")
