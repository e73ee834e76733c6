"""The machine's own state that the node changes: noted before, given back after."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.cluster import host

SETTINGS = {
    "net/ipv4/ip_forward": "1",
    # A pod that reaches a pod of the same bridge through a service gets its answer past the address translation,
    # and drops it, unless bridged packets pass the same rules.
    "net/bridge/bridge-nf-call-iptables": "1",
}
# Made by the plugin for host ports when the first pod asks for one, and never removed by it.
HOST_PORT_CHAINS = ("CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK")
_KERNEL = Path("/proc/sys")


@dataclass(frozen=True)
class Former:
    """What was there before the node."""

    settings: dict[str, str]
    tables: list[str]
    host_port_chains: bool


def note(path: Path) -> None:
    """Write what is there now to the file `path`."""
    if not (_KERNEL / "net/bridge").is_dir():
        host.tool(["modprobe", "br_netfilter"])
    found = Former({name: _setting(name) for name in SETTINGS}, _tables(), bool(_host_port_rules()))
    path.write_text(json.dumps(asdict(found)), encoding="utf-8")


def change() -> None:
    """Apply SETTINGS."""
    for name, value in SETTINGS.items():
        _set(name, value)


def restore(path: Path) -> None:
    """Give back what `note` wrote to `path`; without that file nothing is known, and nothing is changed."""
    if not path.exists():
        return
    former = Former(**json.loads(path.read_text(encoding="utf-8")))
    for name, value in former.settings.items():
        _set(name, value)
    if not former.host_port_chains:
        _remove_host_port_chains()
    for table in _tables():
        # Empty ones only: what somebody else has put into a new table meanwhile is theirs.
        if table not in former.tables and not _has_rules(table):
            host.tool(["nft", "delete", "table", *table.split()], check=False)


def _setting(name: str) -> str:
    return (_KERNEL / name).read_text(encoding="ascii").strip()


def _set(name: str, value: str) -> None:
    if (_KERNEL / name).exists() and _setting(name) != value:
        (_KERNEL / name).write_text(value, encoding="ascii")


def _tables() -> list[str]:
    lines = host.tool(["nft", "list", "tables"], check=False).splitlines()
    return [line.removeprefix("table ") for line in lines]


def _has_rules(table: str) -> bool:
    listed = json.loads(host.tool(["nft", "--json", "list", "table", *table.split()]))["nftables"]
    return any("rule" in each for each in listed)


def _host_port_rules() -> list[str]:
    """Rules of the nat table that are in, or lead to, the chains for host ports."""
    if not shutil.which("iptables-save"):
        return []
    saved = host.tool(["iptables-save", "-t", "nat"], check=False).splitlines()
    return [line for line in saved if line.startswith("-A") and any(chain in line for chain in HOST_PORT_CHAINS)]


def _remove_host_port_chains() -> None:
    rules = _host_port_rules()
    if any(rule.startswith("-A CNI-HOSTPORT-DNAT") for rule in rules):
        return  # another network's pods have host ports by now
    for chain in HOST_PORT_CHAINS:
        for rule in rules:
            if rule.endswith(f"-j {chain}"):
                host.tool(["iptables", "-t", "nat", *host.arguments(rule.replace("-A", "-D", 1))], check=False)
        host.tool(["iptables", "-t", "nat", "-F", chain], check=False)
        host.tool(["iptables", "-t", "nat", "-X", chain], check=False)
