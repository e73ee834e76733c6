"""The inputs that decide which Python packages are installed."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

CONSTRAINTS = "requirements/constraints.txt"
PROJECT = "pyproject.toml"


def dependency_tables(root: Path) -> dict[str, Any]:
    """What pyproject.toml says about dependencies: the rest of that file changes no environment."""
    project = tomllib.loads((root / PROJECT).read_text(encoding="utf-8"))["project"]
    return {
        "requires-python": project["requires-python"],
        "dependencies": project.get("dependencies", []),
        "optional-dependencies": project.get("optional-dependencies", {}),
    }


def key_parts(root: Path) -> list[str]:
    """Parts of a cache key that change when, and only when, the locked set of packages may change."""
    tables = json.dumps(dependency_tables(root), sort_keys=True)
    return [tables, (root / CONSTRAINTS).read_text(encoding="utf-8")]
