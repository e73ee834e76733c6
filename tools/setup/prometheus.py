"""Prometheus and promtool, taken out of Debian's package: what tests of alerts and of the dashboard ask.

Unpacked, not installed: the package would make a user and start a service.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tools.setup import cache, commands, debian
from tools.setup.errors import SetupError

PACKAGE = "prometheus"
PROGRAMS = ("prometheus", "promtool")


def programs() -> dict[str, Path]:
    """Executables by name, from PATH where they are there, else from the cache, unpacked where they are not.

    Raises:
        SetupError: this is no Debian, or the package cannot be fetched.
    """
    found = {name: shutil.which(name) for name in PROGRAMS}
    if all(found.values()):
        return {name: Path(str(path)) for name, path in found.items()}
    if not debian.is_debian():
        raise SetupError(f"{' and '.join(PROGRAMS)} are not in PATH, and only Debian's package is unpacked by itself")
    release = Path("/etc/debian_version").read_text(encoding="utf-8").strip()
    parts = [PACKAGE, debian.architecture(), release.split(".")[0]]
    folder = cache.entry(PACKAGE, cache.key(*parts), _unpack)
    return {name: folder / name for name in PROGRAMS}


def _unpack(folder: Path) -> None:
    log = cache.log_file(PACKAGE)
    # Programs that run as root fetch as a user of their own, who may not write here.
    fetch = ["apt-get", "-o", "APT::Sandbox::User=root", "download", PACKAGE]
    try:
        commands.run(fetch, log, cwd=folder)
    except SetupError:
        if os.geteuid() != 0:
            raise
        commands.run(["apt-get", "update"], log)  # the lists are older than the package, or were never fetched
        commands.run(fetch, log, cwd=folder)
    (package,) = folder.glob("*.deb")
    commands.run(["dpkg", "--extract", package, folder / "tree"], log)
    for name in PROGRAMS:
        (folder / "tree" / "usr" / "bin" / name).rename(folder / name)
    shutil.rmtree(folder / "tree")
    package.unlink()
