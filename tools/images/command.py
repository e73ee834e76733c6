"""The command line of the images."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.errors import ClusterError
from tools.images import build, load
from tools.setup.errors import SetupError

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="tools/images", description=__doc__)
    parser.add_argument(
        "command",
        choices=["build", "load"],
        help="build: make the archives and print them as JSON; load: the same, and put them into the local cluster",
    )
    command = parser.parse_args(arguments).command
    try:
        archives = build.prepare(ROOT)
        if command == "load":
            load.load(archives)
    except (ClusterError, SetupError) as error:
        sys.stderr.write(f"images: {error}\n")
        return 1
    described = [{"name": each.name, "alias": each.alias, "archive": str(each.path)} for each in archives]
    sys.stdout.write(json.dumps(described, indent=2) + "\n")
    return 0
