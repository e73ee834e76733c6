"""The installer of Python packages: `uv`, in a small environment of its own in the cache."""

from __future__ import annotations

import functools
from pathlib import Path

from tools.setup import cache, commands, debian
from tools.setup.errors import SetupError

VERSION = "0.13.9"
# The system's certificates are trusted, as pip and apt do: where a proxy of the organisation answers, only they fit.
ENVIRONMENT = {"UV_SYSTEM_CERTS": "1", "UV_NO_PROGRESS": "1", "UV_NO_CONFIG": "1"}


@functools.cache
def executable(python: Path) -> Path:
    """Return uv's executable, installing it with `python`'s pip if it is not in the cache."""
    log = cache.log_file("uv")

    def build(folder: Path) -> None:
        if _lacks_venv(python):
            _install_venv(python)
        # Not a link to the environment's scripts: uv is a program of its own and stays valid when it is moved.
        commands.run([python, "-m", "venv", folder], log)
        commands.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", f"uv=={VERSION}"], log)

    entry = cache.entry("uv", cache.key(VERSION, str(python)), build)
    return entry / "bin" / "uv"


def install(python: Path, log: Path, *words: str | Path, cwd: Path | None = None) -> None:
    """Run `uv pip install` with `words`, compiling what is installed.

    Compiled at once, for everybody: environments are shared, and some of their users cannot write to them.
    """
    argv: list[str | Path] = [executable(python), "pip", "install", "--compile-bytecode", *words]
    commands.run(argv, log, cwd=cwd, extra_env=ENVIRONMENT)


def _lacks_venv(python: Path) -> bool:
    try:
        commands.output([python, "-c", "import ensurepip, venv"])
    except SetupError:
        return True
    return False


def _install_venv(python: Path) -> None:
    if not debian.is_debian():
        raise SetupError(f"{python} has no module venv or ensurepip; install your distribution's package with them")
    debian.install(debian.PYTHON)
