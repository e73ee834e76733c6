"""The examples' sources where pods of this machine's node can mount them.

A clone often lies in a private folder, which the pods' user cannot enter. So the sources are copied, by content, next
to the packages that the pods mount.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tools.setup import cache, examples_env

FOLDERS = ("sdk/weightsync", "examples/reference", "examples/rl")
NAME = "example-sources"


def prepare(root: Path) -> Path:
    """Return the folder to mount at /opt/example, made if needed: the packages in it stand side by side."""

    def build(folder: Path) -> None:
        for name in FOLDERS:
            source = root / name
            shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        _let_all_read(folder)

    key = cache.key(*cache.tree(root, list(FOLDERS)))
    return cache.entry(NAME, key, build, base=examples_env.PLACE, said="copied")


def _let_all_read(folder: Path) -> None:
    """Whatever the umask and the clone's own modes are."""
    folder.chmod(0o755)
    for parent, folders, files in os.walk(folder):
        for name in folders:
            (Path(parent) / name).chmod(0o755)
        for name in files:
            (Path(parent) / name).chmod(0o644)
