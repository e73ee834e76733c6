"""The user's cache folder: every entry is named by the hash of what went into it.

An entry is a folder that appears at once, complete (built beside and renamed), and is never changed afterwards:
whoever finds it may use it without a lock.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tools.setup import locks, progress

KEY_LENGTH = 16


def root() -> Path:
    """The cache folder; `XDG_CACHE_HOME` moves it."""
    home = os.environ.get("XDG_CACHE_HOME")
    base = Path(home) if home else Path.home() / ".cache"
    return base / "weightsync"


def log_file(name: str) -> Path:
    """Where the programs that build `name` write."""
    return root() / "logs" / f"{name}.log"


def key(*parts: str | bytes) -> str:
    """Hash of `parts`; their borders count, so that ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()[:KEY_LENGTH]


def tree(base: Path, names: list[str]) -> list[str | bytes]:
    """Parts for `key`: names and contents of `files`."""
    parts: list[str | bytes] = []
    for path in files(base, names):
        parts += [str(path.relative_to(base)), path.read_bytes()]
    return parts


def files(base: Path, names: list[str]) -> list[Path]:
    """The files below each of `names` (files or folders of `base`), in a fixed order, compiled Python left out."""
    found = []
    for name in names:
        place = base / name
        below = sorted(place.rglob("*")) if place.is_dir() else [place]
        found += [path for path in below if path.is_file() and "__pycache__" not in path.parts]
    return found


def entry(
    name: str, entry_key: str, build: Callable[[Path], None], *, base: Path | None = None, said: str = "built"
) -> Path:
    """Return the folder of entry `name` with `entry_key`, calling `build` with a folder to fill if it is absent.

    Args:
        name: kind of entry; also the step's name in the progress.
        entry_key: hash of everything that the contents depend on.
        build: fills the folder it is given; the folder is renamed into place when it returns.
        base: parent of the entries, by default the cache folder.
        said: what the progress says of a finished build.
    """
    parent = (base or root()) / name
    path = parent / entry_key
    with progress.step(name) as step:
        if path.is_dir():
            step.end("cached")
            return path
        with locks.exclusive(parent / f"{entry_key}.lock", lambda holder: step.say(f"waiting for {holder}")):
            if path.is_dir():
                step.end("cached (built by another process meanwhile)")
                return path
            step.say("building")
            partial = parent / f"{entry_key}.partial"
            if partial.exists():  # a build that was killed left it; the lock says that nobody is at it now
                shutil.rmtree(partial)
            partial.mkdir(parents=True)
            build(partial)
            partial.rename(path)
            step.end(said)
    return path
