"""The control plane at the guests' wire: etcd, API server, controllers, scheduler, for as long as a block lasts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tools.cluster import control_plane, kubeconfig, plan, processes, waiting
from tools.cluster.api import Client
from tools.cluster.layout import Layout
from tools.cluster.pki import Authority
from tools.guest import wire
from tools.guest_cluster.places import Node

READY_SECONDS = 120.0
GRACE_SECONDS = 2.0
URL = f"https://{wire.GATEWAY}"
# In the order in which they are ended: the API server never ends by itself once etcd is gone.
PROGRAMS = ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")


def identities(nodes: Sequence[Node]) -> dict[str, plan.Identity]:
    """Certificates to issue: the local node's own, for this cluster's addresses, and one for each guest's kubelet."""
    server = plan.IDENTITIES["kube-apiserver"]
    names = ("admin", "apiserver-to-kubelet", "kube-controller-manager", "kube-scheduler")
    return {
        "kube-apiserver": replace(server, served=(*server.served, f"IP:{wire.GATEWAY}")),
        **{name: plan.IDENTITIES[name] for name in names},
        **{
            node.name: plan.Identity(
                f"system:node:{node.name}", "system:nodes", served=(f"DNS:{node.name}", f"IP:{node.address}")
            )
            for node in nodes
        },
    }


def write(layout: Layout, nodes: Sequence[Node]) -> Authority:
    """Keys, certificates and the kubeconfigs of those who run here."""
    authority = Authority(layout.pki)
    authority.create()
    for name, identity in identities(nodes).items():
        authority.issue(name, identity.user, identity.group, identity.served)
    for name in ("kube-controller-manager", "kube-scheduler"):
        path = plan.kubeconfig_of(layout, name)
        kubeconfig.write(path, layout.url, authority.pair.certificate, authority.pair_of(name))
    kubeconfig.write(layout.kubeconfig, URL, authority.pair.certificate, authority.pair_of("admin"))
    return authority


def commands(programs: Mapping[str, Path], layout: Layout, authority: Authority) -> dict[str, list[str]]:
    """The command lines. Of two flags of one name the second counts."""
    serving, to_kubelet = authority.pair_of("kube-apiserver"), authority.pair_of("apiserver-to-kubelet")
    configs = {name: plan.kubeconfig_of(layout, name) for name in PROGRAMS[:2]}
    server = control_plane.node_api_server(programs, layout, authority, serving, to_kubelet)
    controllers = control_plane.controller_manager(programs, layout, authority, configs["kube-controller-manager"])
    return {
        "etcd": control_plane.etcd(programs, layout),
        "kube-apiserver": [*server, f"--advertise-address={wire.GATEWAY}"],
        # Each guest is told the range of its pods with its other files.
        "kube-controller-manager": [*controllers, "--allocate-node-cidrs=false"],
        "kube-scheduler": control_plane.scheduler(programs, layout, configs["kube-scheduler"]),
    }


def client(layout: Layout) -> Client:
    """The administrator's client, for who is at the wire."""
    authority = Authority(layout.pki)
    return Client(layout.ports.api, authority.pair.certificate, authority.pair_of("admin"))


@contextmanager
def running(programs: Mapping[str, Path], layout: Layout, authority: Authority) -> Iterator[None]:
    """Ready at the beginning of the block, gone after it. For a thread at the wire. Raises ClusterError."""
    keeper = processes.Keeper(layout.records)
    lines = commands(programs, layout, authority)
    administrator = client(layout)
    records: list[processes.Record] = []
    # Turns into the program; the kernel ends it where we are killed.
    bound = [shutil.which("setpriv") or "/usr/bin/setpriv", "--pdeathsig", "KILL"]

    def start(*names: str) -> None:
        records.extend(keeper.start(name, [*bound, *lines[name]], layout.logs / f"{name}.log") for name in names)

    try:
        start("etcd", "kube-apiserver")
        waiting.until("ready API server", administrator.is_ready, records, layout.logs, READY_SECONDS)
        start("kube-controller-manager", "kube-scheduler")
        yield
    finally:
        for name in PROGRAMS:
            keeper.stop(name, GRACE_SECONDS)
