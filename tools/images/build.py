"""All images of the project, in the order in which they build on each other."""

from __future__ import annotations

from pathlib import Path

from tools.images import base, project
from tools.images.archives import Archive


def prepare(root: Path) -> list[Archive]:
    """Return the archives for the clone at `root`, built where they are not in the cache."""
    base_image = base.prepare()
    return [base_image, project.prepare(root, base_image)]
