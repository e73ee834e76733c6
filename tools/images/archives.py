"""An image as a file in the cache, with the names that it is to have in the cluster."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

KEPT = 3


@dataclass(frozen=True)
class Archive:
    """An image archive.

    `name` holds the hash of what went into the image: where a node has that name, it has this image. `alias` is the
    fixed name that pod templates use.
    """

    path: Path
    name: str
    alias: str


def forget_old(folder: Path, current: Path, kept: int = KEPT) -> list[Path]:
    """Delete entries of `folder` beyond the `kept` newest; `current` stays in any case. Returns the deleted ones.

    An image is some hundred megabytes and each change of the sources makes one.
    """
    entries = [path for path in folder.iterdir() if path.is_dir() and not path.name.endswith(".partial")]
    others = sorted(
        (path for path in entries if path != current), key=lambda path: path.stat().st_mtime, reverse=True
    )
    old = others[kept - 1 :]
    for path in old:
        shutil.rmtree(path)
    return old
