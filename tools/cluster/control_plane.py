"""Command lines of etcd, API server, controller manager and scheduler. Nothing is started here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools.cluster import layout as places
from tools.cluster.layout import Layout
from tools.cluster.pki import Authority, Pair

ISSUER = "https://kubernetes.default.svc"


def etcd(programs: Mapping[str, Path], layout: Layout) -> list[str]:
    """etcd on the loopback interface, without waiting for the disk: its data need not outlive this machine."""
    client = f"http://127.0.0.1:{layout.ports.etcd}"
    peer = f"http://127.0.0.1:{layout.ports.etcd_peer}"
    return [
        str(programs["etcd"]),
        f"--data-dir={layout.etcd}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server(programs: Mapping[str, Path], layout: Layout, authority: Authority, serving: Pair) -> list[str]:
    """What both kinds of cluster have in common: addresses, authentication, authorization, token issuer."""
    return [
        str(programs["kube-apiserver"]),
        f"--etcd-servers=http://127.0.0.1:{layout.ports.etcd}",
        f"--secure-port={layout.ports.api}",
        f"--service-cluster-ip-range={places.SERVICE_RANGE}",
        f"--client-ca-file={authority.pair.certificate}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--cert-dir={layout.pki}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={authority.token_public_key}",
        f"--service-account-signing-key-file={authority.token_key}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
    ]


def light_api_server(programs: Mapping[str, Path], layout: Layout, authority: Authority, serving: Pair) -> list[str]:
    """The API server alone, on the loopback interface.

    Without the admission of service accounts: no controller makes the namespaces' default accounts, and every pod
    would be refused.
    """
    return [
        *api_server(programs, layout, authority, serving),
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        "--disable-admission-plugins=ServiceAccount",
    ]


def node_api_server(
    programs: Mapping[str, Path], layout: Layout, authority: Authority, serving: Pair, to_kubelet: Pair
) -> list[str]:
    """The API server of the node; pods reach it by the node's address, through the service `kubernetes`."""
    return [
        *api_server(programs, layout, authority, serving),
        "--bind-address=0.0.0.0",
        f"--advertise-address={places.NODE_IP}",
        "--enable-admission-plugins=NodeRestriction",
        f"--kubelet-client-certificate={to_kubelet.certificate}",
        f"--kubelet-client-key={to_kubelet.key}",
        f"--kubelet-certificate-authority={authority.pair.certificate}",
        # By address: the node's name then needs no entry in /etc/hosts for `logs` and `exec`.
        "--kubelet-preferred-address-types=InternalIP",
    ]


def controller_manager(
    programs: Mapping[str, Path], layout: Layout, authority: Authority, kubeconfig: Path
) -> list[str]:
    """The controllers, the ones that hand out pod ranges and service accounts included."""
    return [
        str(programs["kube-controller-manager"]),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.ports.controller_manager}",
        f"--cert-dir={layout.pki}",
        f"--service-account-private-key-file={authority.token_key}",
        f"--root-ca-file={authority.pair.certificate}",
        "--use-service-account-credentials",
        "--allocate-node-cidrs=true",
        f"--cluster-cidr={places.POD_RANGE}",
        f"--service-cluster-ip-range={places.SERVICE_RANGE}",
        f"--flex-volume-plugin-dir={layout.root / 'volume-plugins'}",
        "--leader-elect=false",
    ]


def scheduler(programs: Mapping[str, Path], layout: Layout, kubeconfig: Path) -> list[str]:
    """The scheduler."""
    return [
        str(programs["kube-scheduler"]),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.ports.scheduler}",
        f"--cert-dir={layout.pki}",
        "--leader-elect=false",
    ]
