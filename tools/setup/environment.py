"""The development environment: every package that the project's code, tests and tools import.

It holds third-party packages only, because clones share it; the project's own packages are found by PYTHONPATH
(Makefile) and pytest's `pythonpath`. The clone gets a link `.venv` to it.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

from tools.setup import cache, commands, interpreter, requirements, uv

RECIPE = "1"  # raise it when the commands below change


def prepare(root: Path) -> Path:
    """Return the environment for the clone at `root`, made if needed, and link `.venv` to it."""
    python = interpreter.find()
    venv: list[str | Path] = [uv.executable(python), "venv", "--python", python]
    log = cache.log_file("environment")

    def build(folder: Path) -> None:
        # Relocatable: the folder is renamed when it is complete, and clones reach it through a link.
        commands.run([*venv, "--relocatable", "--allow-existing", folder], log, extra_env=uv.ENVIRONMENT)
        asked: list[str | Path] = ["--requirements", root / requirements.PROJECT, "--extra", "dev"]
        held: list[str | Path] = ["--constraints", root / requirements.CONSTRAINTS]
        uv.install(python, log, "--python", folder, *asked, *held, cwd=root)

    parts = [RECIPE, uv.VERSION, str(python), commands.output([python, "-VV"]), sysconfig.get_platform()]
    entry = cache.entry("environment", cache.key(*parts, *requirements.key_parts(root)), build)
    link(root / ".venv", entry)
    return entry


def link(name: Path, target: Path) -> None:
    """Make `name` a symbolic link to `target`, in one step, replacing an older link."""
    if name.is_symlink() and name.readlink() == target:
        return
    fresh = name.with_name(f"{name.name}.fresh")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(name)
