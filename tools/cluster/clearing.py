"""Ending a node, running or killed, and removing what it leaves."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from tools.cluster import control_groups, former, host, policies, processes, remains
from tools.cluster.errors import ClusterError
from tools.cluster.layout import Layout

# kubelet and kube-proxy before the API server, so that they do not fight the removal; etcd last, because the API
# server never ends by itself once it is gone.
STOP_ORDER = (
    "kube-proxy",
    "kubelet",
    "kube-scheduler",
    "kube-controller-manager",
    "containerd",
    "kube-apiserver",
    "etcd",
)
GRACE_SECONDS = 3.0
FORMER_FILE = "former.json"
DEADLINE_SECONDS = 30.0
PAUSE_SECONDS = 0.1


def clear(layout: Layout) -> remains.Remains:
    """End everything of the node of `layout` and remove what it leaves. Returns what was found.

    Raises:
        ClusterError: something is still there afterwards; with what it is.
    """
    found = remains.find(layout)
    if not found:
        return found
    policies.end(layout)
    keeper = processes.Keeper(layout.records)
    for name in STOP_ORDER:
        keeper.stop(name, GRACE_SECONDS)
    _end_pods(layout)
    _unmount(layout)
    control_groups.remove()
    _remove_network()
    former.restore(layout.root / FORMER_FILE)
    for name in remains.find(layout).files:
        _delete(Path(name))
    for folder in remains.SHARED_FOLDERS:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    left = remains.find(layout)
    if left:
        raise ClusterError(f"the node's remains cannot be removed: {left}: {vars(left)}")
    return found


def _end_pods(layout: Layout) -> None:
    """End shims and pods until none is left: what was being started meanwhile shows up late.

    At once, without a term: nobody is left who could see the pods' end, and the shims are of no use without the
    runtime that was ended before.
    """
    limit = time.monotonic() + DEADLINE_SECONDS
    while pids := [*remains.shims(layout), *control_groups.members()]:
        for pid in pids:
            started = processes.start_time(pid)
            if started is not None:
                processes.end(pid, started, grace_seconds=0)
        if time.monotonic() > limit:
            raise ClusterError(
                f"processes {pids} of pods do not end; are they stuck in the kernel (state D in `ps`)?"
            )
        time.sleep(PAUSE_SECONDS)


def _unmount(layout: Layout) -> None:
    for place in remains.mounts_below(layout.root, Path("/proc/self/mountinfo").read_text(encoding="utf-8")):
        host.tool(["umount", place], check=False)
    # What is still busy is detached: it goes when its last user does.
    for place in remains.mounts_below(layout.root, Path("/proc/self/mountinfo").read_text(encoding="utf-8")):
        host.tool(["umount", "--lazy", place])


def _remove_network() -> None:
    for name in remains.interfaces():
        host.tool(["ip", "link", "delete", name], check=False)  # one end of a pair takes the other with it
    for name in remains.PROXY_TABLES:
        host.tool(["nft", "delete", "table", *name.split()], check=False)
    for rule in host.forwarding_rules():
        host.tool(["iptables", "-D", *rule.split()])
    if shutil.which("iptables-save"):
        _remove_host_ports()


def _remove_host_ports() -> None:
    found = remains.host_port_rules(host.tool(["iptables-save", "-t", "nat"], check=False))
    chains = [words for words in found if " " not in words]
    for chain in chains:
        host.tool(["iptables", "-t", "nat", "-F", chain], check=False)
    for rule in found:
        if rule not in chains:
            host.tool(["iptables", "-t", "nat", "-D", *host.arguments(rule)], check=False)
    for chain in chains:
        host.tool(["iptables", "-t", "nat", "-X", chain], check=False)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
