"""Configuration and command lines of kubelet and kube-proxy. Nothing is started here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tools.cluster import layout as places
from tools.cluster.layout import Layout
from tools.cluster.pki import Authority, Pair


def kubelet(programs: Mapping[str, Path], layout: Layout, kubeconfig: Path) -> list[str]:
    """kubelet's command line."""
    return [
        str(programs["kubelet"]),
        f"--config={layout.config / 'kubelet.json'}",
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={places.NODE_NAME}",
        f"--node-ip={places.NODE_IP}",
        f"--root-dir={layout.kubelet}",
        f"--cert-dir={layout.pki}",
    ]


def kubelet_config(layout: Layout, authority: Authority, serving: Pair) -> str:
    """kubelet's configuration file."""
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "authentication": {
            "x509": {"clientCAFile": str(authority.pair.certificate)},
            "webhook": {"enabled": True},
            "anonymous": {"enabled": False},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "address": places.NODE_IP,
        "port": layout.ports.kubelet,
        "healthzPort": layout.ports.kubelet_health,
        "volumePluginDir": str(layout.root / "volume-plugins"),
        "podLogsDir": str(layout.root / "pod-logs"),
        # Machines with the first generation of control groups are still about, containers among them.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        # One group above all pods: what is left of a killed node is found, and ended, by it.
        "cgroupRoot": f"/{places.CGROUP}",
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        # Chains that only kube-proxy's older mode needs, and that would stay on the machine.
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        # A full disk is the user's, not the pods', and images cannot be pulled again: nothing may be collected.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "maxPods": 250,
    }
    return json.dumps(document, indent=2)


def kube_proxy(programs: Mapping[str, Path], layout: Layout) -> list[str]:
    """kube-proxy's command line."""
    return [str(programs["kube-proxy"]), f"--config={layout.config / 'kube-proxy.json'}"]


def kube_proxy_config(layout: Layout, kubeconfig: Path) -> str:
    """kube-proxy's configuration file."""
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": places.POD_RANGE,
        "hostnameOverride": places.NODE_NAME,
        "healthzBindAddress": f"127.0.0.1:{layout.ports.proxy_health}",
        "metricsBindAddress": f"127.0.0.1:{layout.ports.proxy_metrics}",
        # Zero leaves the machine's own connection-tracking limits alone.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
    return json.dumps(document, indent=2)
