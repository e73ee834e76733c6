"""The machine's network as the node needs it: an address, and rules that let the pods' packets through."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from tools.cluster import layout as places
from tools.cluster.errors import ClusterError

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


def arguments(rule: str) -> list[str]:
    """Split a rule, as iptables-save writes it, into iptables' arguments: comments in it are quoted."""
    return shlex.split(rule)


def links(*selection: str) -> list[dict[str, Any]]:
    """Network interfaces, as `ip` describes them; `selection` such as "master", "NAME"."""
    text = tool(["ip", "-json", "link", "show", *selection], check=False)
    return list(json.loads(text)) if text.strip() else []


def add_node_address() -> None:
    """Give the machine the node's address, on a bridge with no ports (dummy devices are absent from some kernels)."""
    tool(["ip", "link", "add", places.NODE_BRIDGE, "type", "bridge"])
    tool(["ip", "address", "add", f"{places.NODE_IP}/32", "dev", places.NODE_BRIDGE])
    tool(["ip", "link", "set", places.NODE_BRIDGE, "up"])


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
