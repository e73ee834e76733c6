"""SGLang for the tests of layouts: a folder to put on PYTHONPATH, on top of the development environment.

SGLang's own requirements cannot be met without a GPU's kernels, so that its packages are listed one by one and
installed without theirs (requirements/sglang.txt). What the development environment has, torch above all, is not
installed twice: the folder holds what is missing there, some 350 MB instead of 5 GB.
"""

from __future__ import annotations

from pathlib import Path

from tools.setup import cache, commands, interpreter, requirements, uv

RECIPE = "1"  # raise it when the command below changes
NAME = "sglang"
REQUIREMENTS = "requirements/sglang.txt"


def prepare(root: Path) -> Path:
    """Return the folder, made if needed. It fits the Python of `.venv` and the versions of the constraints file."""
    python = interpreter.find()

    def build(folder: Path) -> None:
        place: list[str | Path] = ["--python", python, "--target", folder, "--no-deps"]
        uv.install(python, cache.log_file(NAME), *place, "--requirements", root / REQUIREMENTS)

    listed = [(root / name).read_text(encoding="utf-8") for name in (REQUIREMENTS, requirements.CONSTRAINTS)]
    entry_key = cache.key(RECIPE, str(python), commands.output([python, "-VV"]), uv.VERSION, *listed)
    return cache.entry(NAME, entry_key, build)
