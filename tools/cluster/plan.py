"""What the node should be: every command line and every configuration file. Nothing is started or written here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.cluster import control_plane, node_agents, runtime
from tools.cluster import layout as places
from tools.cluster.layout import Layout
from tools.cluster.pki import Authority

SERVED_NAMES = (
    "DNS:kubernetes",
    "DNS:kubernetes.default",
    "DNS:kubernetes.default.svc",
    "DNS:kubernetes.default.svc.cluster.local",
    "DNS:localhost",
    "IP:127.0.0.1",
    f"IP:{places.API_SERVICE_IP}",
    f"IP:{places.NODE_IP}",
)


@dataclass(frozen=True)
class Identity:
    """A certificate to issue: who its holder is, and as what it serves."""

    user: str
    group: str = ""
    served: tuple[str, ...] = ()


IDENTITIES = {
    "kube-apiserver": Identity("kube-apiserver", served=SERVED_NAMES),
    "admin": Identity("admin", "system:masters"),
    "apiserver-to-kubelet": Identity("kube-apiserver-kubelet-client", "system:masters"),
    "kube-controller-manager": Identity("system:kube-controller-manager"),
    "kube-scheduler": Identity("system:kube-scheduler"),
    "kubelet": Identity(
        f"system:node:{places.NODE_NAME}",
        "system:nodes",
        served=(f"DNS:{places.NODE_NAME}", f"IP:{places.NODE_IP}"),
    ),
    "kube-proxy": Identity("system:kube-proxy"),
}
# Those that reach the API server by a kubeconfig of their own.
CLIENTS = ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")


@dataclass(frozen=True)
class Plan:
    """The node as it should run."""

    files: dict[Path, str]
    commands: dict[str, list[str]]

    def fingerprint(self) -> str:
        """Equal for equal nodes, wherever the programs' cache lies; a program's folder is named by its contents."""
        commands = {name: ["/".join(Path(argv[0]).parts[-2:]), *argv[1:]] for name, argv in self.commands.items()}
        files = {str(path): text for path, text in self.files.items()}
        return hashlib.sha256(json.dumps([commands, files], sort_keys=True).encode()).hexdigest()


def kubeconfig_of(layout: Layout, client: str) -> Path:
    """The kubeconfig of one of CLIENTS."""
    return layout.config / f"{client}.kubeconfig"


def make(programs: Mapping[str, Path], layout: Layout) -> Plan:
    """Plan the node of `layout`, run by `programs`."""
    authority = Authority(layout.pki)
    configs = {client: kubeconfig_of(layout, client) for client in CLIENTS}
    serving, to_kubelet = authority.pair_of("kube-apiserver"), authority.pair_of("apiserver-to-kubelet")
    commands = {
        "etcd": control_plane.etcd(programs, layout),
        "kube-apiserver": control_plane.node_api_server(programs, layout, authority, serving, to_kubelet),
        "kube-controller-manager": control_plane.controller_manager(
            programs, layout, authority, configs["kube-controller-manager"]
        ),
        "kube-scheduler": control_plane.scheduler(programs, layout, configs["kube-scheduler"]),
        "containerd": runtime.containerd(programs, layout),
        "kubelet": node_agents.kubelet(programs, layout, configs["kubelet"]),
        "kube-proxy": node_agents.kube_proxy(programs, layout),
    }
    files = {
        layout.config / "containerd.toml": runtime.containerd_config(layout),
        layout.cni / "conf" / "10-pods.conflist": runtime.network_config(layout),
        layout.config / "kubelet.json": node_agents.kubelet_config(layout, authority, authority.pair_of("kubelet")),
        layout.config / "kube-proxy.json": node_agents.kube_proxy_config(layout, configs["kube-proxy"]),
    }
    return Plan(files, commands)
