"""The machine and the packages that a report's figures belong to. Never a path or a name of this host."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
    "torch",
    "xxhash",
)


def describe(packages: Iterable[str] = PACKAGES) -> dict[str, str | int | float]:
    """cpu, cores (usable by this process), memory in GiB, kernel, python, and each package that is installed."""
    return {
        "cpu": _cpu(Path("/proc/cpuinfo")),
        "cores": len(os.sched_getaffinity(0)),
        "memoryGiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **_versions(packages),
    }


def _cpu(information: Path) -> str:
    for line in information.read_text().splitlines() if information.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions(packages: Iterable[str]) -> dict[str, str | int | float]:
    found: dict[str, str | int | float] = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
