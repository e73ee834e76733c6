"""What the node needs of the machine: an address, forwarding, a control group. Each has its undoing."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.cluster import layout as places
from tools.cluster.errors import ClusterError

SETTINGS = {
    "net/ipv4/ip_forward": "1",
    # A pod that reaches a pod of the same bridge through a service gets its answer past the address translation,
    # and drops it, unless bridged packets pass the same rules.
    "net/bridge/bridge-nf-call-iptables": "1",
}
_FORWARDED = ("-i", "-o")


def tool(argv: Sequence[str], *, check: bool = True) -> str:
    """Run a system program. Returns what it prints.

    Raises:
        ClusterError: it is not installed, or `check` is set and it failed.
    """
    program = shutil.which(argv[0]) or shutil.which(argv[0], path="/usr/sbin:/sbin")
    if program is None:
        raise ClusterError(f"{argv[0]} is not installed; `python3 tools/setup debian` installs it")
    answer = subprocess.run([program, *argv[1:]], capture_output=True, text=True, check=False)
    if check and answer.returncode != 0:
        raise ClusterError(f"`{' '.join(argv)}` failed: {answer.stderr.strip() or answer.stdout.strip()}")
    return answer.stdout


def links(*selection: str) -> list[dict[str, Any]]:
    """Network interfaces, as `ip` describes them; `selection` such as "master", "NAME"."""
    text = tool(["ip", "-json", "link", "show", *selection], check=False)
    return list(json.loads(text)) if text.strip() else []


def add_node_address() -> None:
    """Give the machine the node's address, on a bridge with no ports (dummy devices are absent from some kernels)."""
    tool(["ip", "link", "add", places.NODE_BRIDGE, "type", "bridge"])
    tool(["ip", "address", "add", f"{places.NODE_IP}/32", "dev", places.NODE_BRIDGE])
    tool(["ip", "link", "set", places.NODE_BRIDGE, "up"])


def change_settings(saved: Path) -> None:
    """Apply SETTINGS; the values from before go to the file `saved`."""
    if not (Path("/proc/sys") / "net/bridge").is_dir():
        tool(["modprobe", "br_netfilter"])
    former = {name: (Path("/proc/sys") / name).read_text(encoding="ascii").strip() for name in SETTINGS}
    if not saved.exists():  # a second run must not take our own values for the former ones
        saved.write_text(json.dumps(former), encoding="utf-8")
    for name, value in SETTINGS.items():
        if former[name] != value:
            (Path("/proc/sys") / name).write_text(value, encoding="ascii")


def restore_settings(saved: Path) -> None:
    """Undo `change_settings`."""
    if saved.exists():
        for name, value in json.loads(saved.read_text(encoding="utf-8")).items():
            path = Path("/proc/sys") / name
            if path.exists() and path.read_text(encoding="ascii").strip() != value:
                path.write_text(value, encoding="ascii")


def let_pods_through() -> None:
    """Accept the pods' packets where the machine drops forwarded ones by default, as Docker has it."""
    if shutil.which("iptables") and "-P FORWARD DROP" in tool(["iptables", "-S", "FORWARD"], check=False):
        for direction in _FORWARDED:
            tool(["iptables", "-I", "FORWARD", direction, places.POD_BRIDGE, "-j", "ACCEPT"])


def forwarding_rules() -> list[str]:
    """The rules of `let_pods_through` that exist, as arguments for iptables without their command."""
    if not shutil.which("iptables"):
        return []
    rules = tool(["iptables", "-S", "FORWARD"], check=False).splitlines()
    wanted = [f"FORWARD {direction} {places.POD_BRIDGE} -j ACCEPT" for direction in _FORWARDED]
    return [rule.removeprefix("-A ") for rule in rules if rule.removeprefix("-A ") in wanted]


def cgroup_folders() -> list[Path]:
    """The folder of the pods' control group in each hierarchy of this machine, existing or not."""
    return [mount / places.CGROUP for mount in _cgroup_hierarchies()]


def _cgroup_hierarchies() -> list[Path]:
    found = []
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            found.append(Path(place))
    # Beside hierarchies of the first generation a mounted second one is only a view without controllers.
    first = [mount for mount in found if not (mount / "cgroup.controllers").exists()]
    return first or found


def make_cgroup() -> None:
    """Make the pods' control group in every hierarchy: kubelet wants it to exist."""
    for folder in cgroup_folders():
        folder.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            # A new group of the first generation has no processor and no memory, and takes no process.
            own = folder / name
            if own.exists() and not own.read_text(encoding="ascii").strip():
                own.write_text((folder.parent / name).read_text(encoding="ascii"), encoding="ascii")
