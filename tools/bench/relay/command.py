"""What a sync to several engines costs the trainer, the engines, and those beside one that is stopped.

Each pod has a network namespace of its own whose link has a known speed, so that what counts is who sends how much.
Needs root. Writes build/bench/relay.json; exit status 1 where a bound is broken.
"""

import argparse
import sys
from pathlib import Path

from tools.bench.relay.figures import measures
from tools.bench.relay.site import Links
from tools.bench.relay.trials import Extent, run
from tools.report.writing import write
from tools.world.processes import WorldError
from weightsync.units import parse_bytes

MEGABYTE = 10**6


def main(arguments: list[str]) -> int:
    """Exit status 2 where the trials cannot run here."""
    parser = argparse.ArgumentParser(prog="bench relay", description=__doc__)
    parser.add_argument("--engines", type=int, default=8, help="engines that a version goes to (8)")
    parser.add_argument(
        "--fanout", type=int, default=2, help="others that each engine, and the trainer, feeds; 0: no relay (2)"
    )
    parser.add_argument("--bytes", type=parse_bytes, default=256 << 20, help="size of a version (256Mi)")
    parser.add_argument("--bucket", type=parse_bytes, default=8 << 20, help="size of a bucket (8Mi)")
    parser.add_argument("--rate", type=float, default=50, help="MB a second of each pod's link, each way (50)")
    parser.add_argument("--syncs", type=int, default=3, help="versions that are counted in each trial (3)")
    parser.add_argument("--no-joins", action="store_true", help="only syncs")
    options = parser.parse_args(arguments)
    if options.engines < 2:
        parser.error("--engines: give at least 2, or there is nobody beside one that is stopped")
    links = Links(options.bytes, options.bucket, int(options.rate * MEGABYTE), options.fanout)
    try:
        found = measures(run(links, Extent(options.engines, options.syncs, joins=not options.no_joins)))
    except WorldError as error:
        sys.stderr.write(f"bench relay: {error}\n")
        return 2
    conditions: dict[str, str | int | float] = {
        "engines": options.engines, "fanout": options.fanout, "linkMBPerSecond": options.rate,
    }  # fmt: skip
    path = write("bench", "relay", found, conditions=conditions)
    sys.stderr.write(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path.name}\n")
    return 0 if all(measure.holds for measure in found) else 1
