"""What a guest's node reads: configuration of containerd, its network, kubelet and the device plugin. Nothing starts.

The files lie in a folder of this machine, and the guest copies them to the places that they name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tools.cluster import kubeconfig, runtime
from tools.cluster.layout import POD_BRIDGE, POD_NETWORK
from tools.cluster.pki import Authority
from tools.guest_cluster import control
from tools.guest_cluster.places import IN_GUEST, RESOURCE, Node


def write(folder: Path, node: Node, others: Sequence[Node], authority: Authority) -> None:
    """All files of one node into ``folder``, made here."""
    folder.mkdir(parents=True)
    own = authority.pair_of(node.name)
    copied = {"ca.crt": authority.pair.certificate, "kubelet.crt": own.certificate, "kubelet.key": own.key}
    for name, path in copied.items():
        (folder / name).write_bytes(path.read_bytes())
    kubeconfig.write(folder / "kubeconfig", control.URL, authority.pair.certificate, own)
    (folder / "cni").mkdir()
    (folder / "cni" / "pods.conflist").write_text(network(node))
    (folder / "containerd.toml").write_text(containerd())
    (folder / "kubelet.json").write_text(kubelet(node))
    (folder / "plugin.json").write_text(plugin())
    # Where the other guests' pods are: one range and address a line.
    (folder / "routes").write_text("".join(f"{other.pods} {other.address}\n" for other in others))


def containerd() -> str:
    """The local node's configuration, with the network's folder where the guest has it."""
    return runtime.containerd_config(IN_GUEST).replace(f"{IN_GUEST.cni / 'conf'}", f"{IN_GUEST.cni}")


def network(node: Node) -> str:
    """The pod network: a bridge, addresses from the node's range. No address is translated: guests route to pods."""
    bridge = {
        "type": "bridge",
        "bridge": POD_BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(IN_GUEST.root / "leases"),
            "ranges": [[{"subnet": node.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps({"cniVersion": "1.0.0", "name": POD_NETWORK, "plugins": [bridge]}, indent=2)


def kubelet(node: Node) -> str:
    """kubelet's configuration. Its folder is the usual one: device plugins look for it there and nowhere else."""
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{IN_GUEST.containerd_socket}",
        "authentication": {
            "x509": {"clientCAFile": str(IN_GUEST.root / "ca.crt")},
            "webhook": {"enabled": True},
            "anonymous": {"enabled": False},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(IN_GUEST.root / "kubelet.crt"),
        "tlsPrivateKeyFile": str(IN_GUEST.root / "kubelet.key"),
        "address": node.address,
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": False,
        "localStorageCapacityIsolation": False,
        # Images cannot be pulled: none may be collected, whatever the disk of this machine looks like.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "50Mi"},
        "runtimeRequestTimeout": "10m",
        "volumeStatsAggPeriod": "-1s",  # nobody reads them here, where a processor is emulated
    }
    return json.dumps(document, indent=2)


def plugin() -> str:
    """The device plugin's configuration: many pods share the device of the wire's interface."""
    resource = {
        "resourceName": RESOURCE.partition("/")[2],
        "rdmaHcaMax": 100,
        "selectors": {"ifNames": ["eth0"]},
    }
    return json.dumps({"periodicUpdateInterval": 0, "configList": [resource]}, indent=2)
