"""The oldest packages that pyproject.toml lets a trainer or an engine bring along: a folder to put on PYTHONPATH.

The sdk is imported in environments that others made: what it says it can live with is tried.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from tools.setup import cache, commands, interpreter, requirements, uv

RECIPE = "1"  # raise it when the command below changes
NAME = "oldest"


def prepare(root: Path) -> Path:
    """Return the folder, made if needed: the project's base dependencies, each in the lowest version allowed."""
    python = interpreter.find()

    def build(folder: Path) -> None:
        lowest: list[str | Path] = ["--python", python, "--target", folder, "--resolution", "lowest-direct"]
        uv.install(python, cache.log_file(NAME), *lowest, "--requirements", root / requirements.PROJECT, cwd=root)

    parts = [RECIPE, uv.VERSION, commands.output([python, "-VV"]), sysconfig.get_platform()]
    return cache.entry(NAME, cache.key(*parts, (root / requirements.PROJECT).read_text(encoding="utf-8")), build)
