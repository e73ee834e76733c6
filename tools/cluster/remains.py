"""What a node leaves behind when it ends or is killed: how to find it and how to remove it.

Everything is found on the machine itself, not in records, because a killed node's records may be gone. Everything
carries the cluster's mark: its folder in the path, its name, or its control group; nothing else is touched.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
from dataclasses import dataclass, field, fields
from pathlib import Path

from tools.cluster import control_groups, host, policies, processes
from tools.cluster import layout as places
from tools.cluster.layout import Layout

CNI_RESULTS = Path("/var/lib/cni/results")
KUBELET_LOG_LINKS = Path("/var/log/containers")
KUBELET_PLUGINS = Path("/var/lib/kubelet/device-plugins/kubelet.sock")
# Folders that the programs make outside the cluster's own, the inner ones first; removed where nothing is in them.
SHARED_FOLDERS = (
    CNI_RESULTS,
    CNI_RESULTS.parent,
    KUBELET_LOG_LINKS,
    KUBELET_PLUGINS.parent,
    KUBELET_PLUGINS.parent.parent,
    Path("/run/containerd/s"),
    Path("/run/containerd"),
)
PROXY_TABLES = ("ip kube-proxy", "ip6 kube-proxy")
END_SECONDS = 20.0


@dataclass
class Remains:
    """What was found, by kind; each entry names one thing."""

    processes: list[str] = field(default_factory=list)
    shims: list[int] = field(default_factory=list)
    pod_processes: list[int] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    interfaces: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    host_port_rules: list[str] = field(default_factory=list)
    policy_rules: list[str] = field(default_factory=list)
    control_groups: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))

    def __str__(self) -> str:
        counted = [(len(getattr(self, each.name)), each.name.replace("_", " ")) for each in fields(self)]
        return ", ".join(f"{number} {kind}" for number, kind in counted if number) or "nothing"


def find(layout: Layout) -> Remains:
    """Everything of the node of `layout` that is on this machine, running or not."""
    records = processes.Keeper(layout.records).records()
    rules = host.tool(["iptables-save", "-t", "nat"], check=False) if shutil.which("iptables-save") else ""
    return Remains(
        processes=[name for name, record in records.items() if processes.is_alive(record)],
        shims=shims(layout),
        pod_processes=control_groups.members(),
        mounts=mounts_below(layout.root, Path("/proc/self/mountinfo").read_text(encoding="utf-8")),
        interfaces=interfaces(),
        tables=[name for name in PROXY_TABLES if _has_table(name)],
        host_port_rules=[*host_port_rules(rules), *host.forwarding_rules()],
        policy_rules=policies.rules() if policies.NAME in records else [],
        control_groups=[str(folder) for folder in control_groups.folders() if folder.exists()],
        files=[str(path) for path in _files(layout) if path.exists() or path.is_symlink()],
    )


def shims(layout: Layout, proc: Path = Path("/proc")) -> list[int]:
    """Process ids of the shims of this cluster's containerd: they outlive it, and are told by its socket's path."""
    found = []
    for folder in proc.glob("[0-9]*"):
        try:
            argv = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if argv[0].endswith("containerd-shim-runc-v2") and str(layout.containerd_socket) in argv:
            found.append(int(folder.name))
    return found


def mounts_below(root: Path, mountinfo: str) -> list[str]:
    """Mount points in or below `root`, from the text of /proc/self/mountinfo; the last mounted first."""
    places_found = []
    for line in mountinfo.splitlines():
        # Blanks and the like are written as octal escapes.
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split()[4])
        if place == str(root) or place.startswith(f"{root}/"):
            places_found.append(place)
    return places_found[::-1]


def interfaces() -> list[str]:
    """The cluster's network interfaces: what hangs on the pods' bridge, then the bridges."""
    bridges = [name for name in (places.POD_BRIDGE, places.NODE_BRIDGE) if host.links("dev", name)]
    ports = [link["ifname"] for name in bridges for link in host.links("master", name)]
    return [*ports, *bridges]


def host_port_rules(saved: str) -> list[str]:
    """Rules and chains for host ports of this cluster's pods, from the text of `iptables-save -t nat`.

    Returned as iptables arguments without their command: a rule as `CHAIN ...`, a pod's chain by its name alone, each
    rule before the chain that it leads to.
    """
    rules = []
    chains = []
    for line in saved.splitlines():
        if line.startswith("-A") and f'\\"{places.POD_NETWORK}\\"' in line:
            rules.append(line.removeprefix("-A "))
            jump = re.search(r"-j (CNI-DN-\S+)", line)
            if jump is not None and jump[1] not in chains:
                chains.append(jump[1])
    return [*rules, *chains]


def _has_table(name: str) -> bool:
    return bool(shutil.which("nft")) and bool(host.tool(["nft", "list", "table", *name.split()], check=False).strip())


def _files(layout: Layout) -> list[Path]:
    return [*network_results(CNI_RESULTS), *_log_links(layout), *shim_sockets(layout), *_plugin_socket(), layout.root]


def network_results(folder: Path) -> list[Path]:
    """What the network plugins remember of this cluster's pods: of their network, and of the loopback of each."""
    own = list(folder.glob(f"{places.POD_NETWORK}-*"))
    pods = [path.name.removeprefix(f"{places.POD_NETWORK}-").rpartition("-")[0] for path in own]
    return [*own, *(folder / f"cni-loopback-{pod}-lo" for pod in pods)]


def _log_links(layout: Layout) -> list[Path]:
    links = [path for path in KUBELET_LOG_LINKS.glob("*") if path.is_symlink()]
    return [link for link in links if layout.root in link.readlink().parents]


def shim_sockets(layout: Layout) -> list[Path]:
    """Sockets of the shims; they lie in a folder that all containerds of a machine share."""
    found = []
    for path in (layout.containerd / "state").glob("io.containerd.runtime.v2.task/*/*/bootstrap.json"):
        address = json.loads(path.read_text(encoding="utf-8")).get("address", "")
        if address.startswith("unix://"):
            found.append(Path(address.removeprefix("unix://")))
    return found


def _plugin_socket() -> list[Path]:
    """kubelet's socket for device plugins, whose place no setting moves; another kubelet's is left alone."""
    if not KUBELET_PLUGINS.is_socket():
        return []
    with socket.socket(socket.AF_UNIX) as caller:
        try:
            caller.connect(str(KUBELET_PLUGINS))
        except ConnectionRefusedError:
            return [KUBELET_PLUGINS]
    return []
