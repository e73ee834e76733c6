"""What the user asked for."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.cluster import node

STEPS = 40
NAMESPACE = "weightsync-demo"


@dataclass(frozen=True)
class Options:
    """kubeconfig: the cluster that the user gave, None: this machine's own node. images: see `image_prefix`."""

    kubeconfig: Path | None
    image_prefix: str
    image_tag: str
    namespace: str
    steps: int
    keep: bool
    report: Path

    @property
    def scale_at(self) -> int:
        """The step after which the rollout is scaled."""
        return max(2, self.steps // 4)

    @property
    def delete_at(self) -> int:
        """The step in whose sync an engine is deleted."""
        return max(self.scale_at + 2, self.steps * 3 // 5)


def parse(arguments: Sequence[str], root: Path) -> Options:
    """Read the command line; asks for the image prefix where it is needed and was not given."""
    parser = argparse.ArgumentParser(
        prog="make demo",
        description="Run the main job on Kubernetes: two trainer ranks, two then four rollout engines.",
        epilog="Without KUBECONFIG a one-node Kubernetes is started on this machine (root, Debian).",
    )
    add = parser.add_argument
    add("--keep", action="store_true", help="leave everything running at the end")
    add("--steps", type=int, default=STEPS, help=f"training steps (default {STEPS})")
    add("--namespace", default=NAMESPACE)
    add(
        "--image-prefix",
        default=os.environ.get("IMAGE_PREFIX", ""),
        help="with KUBECONFIG: where PREFIX/weightsync and PREFIX/weightsync-example can be pulled from",
    )
    add("--image-tag", default=os.environ.get("IMAGE_TAG", "dev"))
    add("--report", type=Path, default=root / "build" / "demo" / "report.json")
    flags = parser.parse_args(arguments)
    given = os.environ.get("KUBECONFIG")
    if given and Path(given) == node.kubeconfig_path():
        given = None  # this machine's own node, which is set up as if nothing had been said
    prefix = str(flags.image_prefix).rstrip("/")
    if given and not prefix:
        if not sys.stdin.isatty():
            parser.error("KUBECONFIG is set: say where images are pulled from, by --image-prefix or IMAGE_PREFIX")
        prefix = (
            input("Image prefix (PREFIX/weightsync and PREFIX/weightsync-example are pulled): ").strip().rstrip("/")
        )
        if not prefix:
            parser.error("an image prefix is needed")
    if flags.steps < 8:
        parser.error("--steps: at least 8, or there is no room for scaling and deleting")
    return Options(
        kubeconfig=Path(given) if given else None,
        image_prefix=prefix,
        image_tag=flags.image_tag,
        namespace=flags.namespace,
        steps=flags.steps,
        keep=flags.keep,
        report=flags.report,
    )
