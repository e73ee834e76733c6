"""Finding a Python that is new enough. Runs under any Python from 3.9 on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

LOWEST = (3, 11)
# 3.11 first: it is what the base image has, so that wheels are shared with the examples' environment.
CANDIDATES = ("python3.11", "/usr/bin/python3.11", "python3.12", "python3.13", "python3.14", "python3")
# The base interpreter is asked for: an environment made from another environment dies with it.
_QUESTION = "import sys; print(*sys.version_info[:2], getattr(sys, '_base_executable', '') or sys.executable)"


class NoInterpreterError(Exception):
    """No Python that is new enough is on this machine."""


def describe(candidate: str) -> tuple[tuple[int, int], Path] | None:
    """Release and real executable of `candidate`, or None where it does not run.

    Asked from the interpreter itself: version managers put shims on PATH that exist for releases which are not
    installed, and a virtual environment made from a shim breaks with the shim.
    """
    found = shutil.which(candidate)
    if found is None:
        return None
    answer = subprocess.run([found, "-c", _QUESTION], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        return None
    major, minor, executable = answer.stdout.strip().split(" ", 2)
    return (int(major), int(minor)), Path(executable)


def find() -> Path:
    """Return the executable of the first candidate that is new enough."""
    for candidate in CANDIDATES:
        described = describe(candidate)
        if described is not None and described[0] >= LOWEST:
            return described[1]
    lowest = ".".join(str(number) for number in LOWEST)
    raise NoInterpreterError(
        f"no Python {lowest} or newer on this machine (looked for {', '.join(CANDIDATES)}); install one, on Debian: "
        "apt-get install python3.11 python3.11-venv"
    )
