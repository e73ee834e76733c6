"""NetworkPolicies enforced on the running node, for as long as a test needs it: kube-router beside its programs.

For tests alone: flaws are reported for the release that is built, and the node does without it otherwise. Its rules
and sets do not carry the cluster's mark; they are this cluster's if, and only if, its record lies in the cluster's
folder, as it is not started where there are such rules already.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.cluster import host, kubeconfig, processes, waiting
from tools.cluster import layout as places
from tools.cluster.errors import ClusterError
from tools.cluster.layout import Layout
from tools.cluster.pki import Authority
from tools.setup import debian, go_binaries, locks

NAME = "kube-router"
LOCK = places.NODE_LOCK.with_name("weightsync-policies.lock")
GRACE_SECONDS = 3.0
READY_SECONDS = 60.0
GONE_SECONDS = 10.0
# Of kube-router's firewall; KUBE-NWPLCY-DEFAULT is among the second.
CHAINS = ("KUBE-ROUTER-", "KUBE-NWPLCY-", "KUBE-POD-FW-")
SETS = ("KUBE-SRC-", "KUBE-DST-")


@contextmanager
def enforced() -> Iterator[None]:
    """Enforce the node's NetworkPolicies until the end of the block, then remove its rules. Raises as `start`."""
    with locks.exclusive(LOCK):  # two at once would each remove the other's rules
        try:
            start()
            yield
        finally:
            end(places.node())


def start() -> None:
    """Enforce the node's NetworkPolicies until `end`, or until the node ends.

    Raises:
        ClusterError: the node does not run, somebody else's kube-router is at work, or this one does not start.
        SetupError: kube-router or ipset is missing and cannot be made or installed.
    """
    layout = places.node()
    if not layout.manifest.exists():
        raise ClusterError("the local cluster does not run; `python3 tools/cluster up` starts it")
    debian.install(debian.POLICIES)
    program = go_binaries.policies()
    end(layout)
    if rules():
        raise ClusterError(f"this machine has rules of another kube-router already, such as `{rules()[0]}`")
    authority = Authority(layout.pki)
    config = layout.config / f"{NAME}.kubeconfig"
    kubeconfig.write(config, layout.url, authority.pair.certificate, authority.pair_of("admin"))
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    keeper, log = processes.Keeper(layout.records), layout.logs / f"{NAME}.log"
    record = keeper.start(NAME, command(program, config), log, {"PATH": path})
    waiting.until("NetworkPolicies are enforced", _loaded, [record], layout.logs, READY_SECONDS)


def end(layout: Layout) -> None:
    """End kube-router, where it was started here, and remove what it left, also where it was killed."""
    keeper = processes.Keeper(layout.records)
    record = keeper.records().get(NAME)
    if record is None:
        return
    processes.end(record.pid, record.start_time, GRACE_SECONDS)
    _remove()
    keeper.stop(NAME, GRACE_SECONDS)  # forgets it: last, so that what is left after a failure is known to be ours


def rules() -> list[str]:
    """kube-router's chains, rules and sets on this machine: iptables' lines, and the sets' names."""
    saved = host.tool(["iptables", "-S"], check=False).splitlines() if shutil.which("iptables") else []
    return [*chain_rules(saved), *_sets()]


def chain_rules(saved: list[str]) -> list[str]:
    """The lines of `iptables -S` that make, fill, or lead to, one of its chains. Pure."""
    return [line for line in saved if any(word.startswith(CHAINS) for word in line.split())]


def command(program: Path, config: Path) -> list[str]:
    """kube-router's command line: its firewall, and nothing else of it."""
    return [
        str(program),
        f"--kubeconfig={config}",
        f"--hostname-override={places.NODE_NAME}",
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        "--enable-cni=false",
        f"--service-cluster-ip-range={places.SERVICE_RANGE}",
        "--health-port=0",
    ]


def _loaded() -> bool:
    """Whether its first pass is over, which ends by this chain; before it everything is let through."""
    return any(line.startswith("-A KUBE-ROUTER-FORWARD") for line in rules())


def _sets() -> list[str]:
    found = host.tool(["ipset", "list", "-name"], check=False).split() if shutil.which("ipset") else []
    return [name for name in found if name.startswith(SETS)]


def _remove() -> None:
    lines = [line for line in rules() if line.startswith("-")]
    chains = [line.split()[1] for line in lines if line.startswith("-N")]
    for line in lines:
        if line.startswith("-A") and line.split()[1] not in chains:
            host.tool(["iptables", "-D", *host.arguments(line.removeprefix("-A "))])
    for word in ("-F", "-X"):  # all are emptied before the first goes: they lead to one another
        for chain in chains:
            host.tool(["iptables", word, chain])
    # The kernel lets go of a set some moments after the last rule that named it.
    limit = time.monotonic() + GONE_SECONDS
    while names := _sets():
        for name in names:
            host.tool(["ipset", "destroy", name], check=time.monotonic() > limit)
        time.sleep(waiting.PAUSE_SECONDS)
