"""The programs that build the documentation and look for flaws: an environment apart from the project's own.

Nothing of the project imports them, and the development environment, torch included, is not made anew for them.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from tools.setup import cache, commands, interpreter, uv

LOCKED = "requirements/tools.txt"
RECIPE = "1"  # raise it when the commands below change


def prepare(root: Path) -> Path:
    """Return the environment's folder of programs, made if needed."""
    python = interpreter.find()
    log = cache.log_file("tools-environment")

    def build(folder: Path) -> None:
        words: list[str | Path] = [uv.executable(python), "venv", "--python", python, "--relocatable"]
        commands.run([*words, "--allow-existing", folder], log, extra_env=uv.ENVIRONMENT)
        uv.install(python, log, "--python", folder, "--requirements", root / LOCKED, cwd=root)

    parts = [RECIPE, uv.VERSION, commands.output([python, "-VV"]), sysconfig.get_platform()]
    key = cache.key(*parts, (root / LOCKED).read_text(encoding="utf-8"))
    return cache.entry("tools-environment", key, build) / "bin"
