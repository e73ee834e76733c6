"""The Python packages that the example pods mount, read-only, instead of carrying them in an image.

torch alone is 4.7 GB in the package index's only build: it stays out of images. The folder is made for the Python of
the base image and lies outside any private folder, because the pods' user is not root.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tools.setup import cache, commands, interpreter, requirements, uv
from tools.setup.errors import SetupError

RECIPE = "1"  # raise it when the command below changes
PYTHON_RELEASE = "3.11"  # of the base image, Debian bookworm
PLACE = Path("/var/cache/weightsync")
NAME = "examples"
PACKAGES = ("aiohttp", "numpy", "pydantic", "safetensors", "structlog", "torch", "xxhash")


def locked(root: Path) -> list[str]:
    """`PACKAGES` as requirements at the versions of the constraints file."""
    text = (root / requirements.CONSTRAINTS).read_text(encoding="utf-8")
    versions = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE))
    absent = [name for name in PACKAGES if name not in versions]
    if absent:
        raise SetupError(f"{requirements.CONSTRAINTS} does not lock {', '.join(absent)}, which the example pods need")
    return [f"{name}=={versions[name]}" for name in PACKAGES]


def prepare(root: Path) -> Path:
    """Return the folder to mount and put on PYTHONPATH, made if needed."""
    python = interpreter.find()

    def build(folder: Path) -> None:
        place: list[str | Path] = ["--python", python, "--python-version", PYTHON_RELEASE, "--target", folder]
        held: list[str | Path] = ["--constraints", root / requirements.CONSTRAINTS]
        uv.install(python, cache.log_file(NAME), *place, *held, *locked(root))
        folder.chmod(0o755)

    constraints = (root / requirements.CONSTRAINTS).read_text(encoding="utf-8")
    found = commands.output([python, "-VV"])
    if f"Python {PYTHON_RELEASE}." not in found:
        raise SetupError(
            f"the example pods run Python {PYTHON_RELEASE}, and compiled files must fit: install python3.11 "
            f"(found only {found})"
        )
    entry_key = cache.key(RECIPE, PYTHON_RELEASE, json.dumps(PACKAGES), constraints, uv.VERSION)
    return cache.entry(NAME, entry_key, build, base=PLACE)
