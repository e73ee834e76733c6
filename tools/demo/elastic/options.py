"""What the user asked for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.demo.elastic.plot import END, MANY
from tools.demo.options import Options

NAMESPACE = "weightsync-elastic"
FOR_EVER = 1_000_000  # steps: the trainer goes on until it is removed


@dataclass(frozen=True)
class ElasticOptions:
    """as_json: the report goes to standard output, all that is for people to standard error.

    many: engines after scaling up.
    """

    demo: Options
    as_json: bool
    many: int


def parse(arguments: Sequence[str], root: Path) -> ElasticOptions:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="make demo-elastic",
        description="Two, eight and three engines while training goes on; the trainer is killed and comes back.",
        epilog="On a one-node Kubernetes that is started on this machine (root, Debian).",
    )
    add = parser.add_argument
    add("--keep", action="store_true", help="leave everything running at the end")
    add("--namespace", default=NAMESPACE)
    add("--engines", type=int, default=MANY, help=f"how many there are after scaling up (default {MANY})")
    add("--output", "-o", choices=("text", "json"), default="text", help="json: the report on standard output")
    add("--report", type=Path, default=root / "build" / "demo" / "elastic.json")
    flags = parser.parse_args(arguments)
    if flags.engines <= END:
        parser.error(f"--engines: more than {END}, to which the rollout is scaled down in the end")
    demo = Options(
        kubeconfig=None, image_prefix="", image_tag="", namespace=flags.namespace, steps=FOR_EVER, keep=flags.keep,
        report=flags.report,
    )  # fmt: skip
    return ElasticOptions(demo, as_json=flags.output == "json", many=flags.engines)
