"""The control group above all pods: it is how what runs in pods is found, and ended, after a kill."""

from __future__ import annotations

import time
from pathlib import Path

from tools.cluster import layout as places
from tools.cluster.errors import ClusterError

DEADLINE_SECONDS = 30.0
PAUSE_SECONDS = 0.1


def folders() -> list[Path]:
    """The group's folder in each hierarchy of this machine, existing or not."""
    found = []
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            found.append(Path(place) / places.CGROUP)
    return found


def make() -> None:
    """Make the group in every hierarchy: kubelet wants it to exist, with every controller."""
    for folder in folders():
        pass_on_controllers(folder.parent)
        folder.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            # A new group of the first generation has no processor and no memory, and takes no process.
            own, above = folder / name, folder.parent / name
            if own.exists() and above.exists() and not own.read_text(encoding="ascii").strip():
                own.write_text(above.read_text(encoding="ascii"), encoding="ascii")


def pass_on_controllers(parent: Path) -> None:
    """Let groups below `parent` use every controller of the second generation that `parent` has."""
    available, passed = parent / "cgroup.controllers", parent / "cgroup.subtree_control"
    if not available.exists():
        return
    absent = set(available.read_text(encoding="ascii").split()) - set(passed.read_text(encoding="ascii").split())
    for name in sorted(absent):
        passed.write_text(f"+{name}", encoding="ascii")


def members() -> list[int]:
    """Process ids of everything that runs in the group or below it."""
    found: set[int] = set()
    for group in folders():
        for path in group.rglob("cgroup.procs"):
            try:
                found.update(int(word) for word in path.read_text(encoding="ascii").split())
            except OSError:
                continue  # the group went away between listing and reading
    return sorted(found)


def remove() -> None:
    """Remove the group and those below it; nothing may run in them any more.

    Raises:
        ClusterError: the kernel does not let go of one.
    """
    limit = time.monotonic() + DEADLINE_SECONDS
    for top in folders():
        while top.exists():
            for folder in [*sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True), top]:
                try:
                    folder.rmdir()
                except OSError as error:
                    # A group stays some moments after its last process.
                    if time.monotonic() > limit:
                        raise ClusterError(f"the control group {folder} cannot be removed: {error}") from error
            if top.exists():
                time.sleep(PAUSE_SECONDS)
