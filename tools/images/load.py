"""Putting images into the local cluster."""

from __future__ import annotations

from collections.abc import Sequence

from tools.cluster import node
from tools.images.archives import Archive
from tools.setup import progress


def load(archives: Sequence[Archive]) -> None:
    """Load what the running node does not have yet, and let the fixed names mean these images."""
    runtime = node.runtime_client()
    present = set(runtime.images())
    for archive in archives:
        with progress.step(f"load {archive.alias}") as step:
            if archive.name in present:
                step.end("was there")
            else:
                runtime.load(archive.path)
            runtime.tag(archive.name, archive.alias)
