"""Where each file of a cluster lies and on which address and port each program listens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# The node is one per machine, hence its fixed folder, addresses and ports; ports and ranges are unusual ones, so that
# another Kubernetes on this machine is not in the way.
NODE_FOLDER = Path("/var/lib/weightsync-cluster")
NODE_LOCK = Path("/run/lock/weightsync-cluster.lock")
NODE_NAME = "weightsync-local"
NODE_IP = "10.215.0.1"
POD_RANGE = "10.213.0.0/16"
NODE_POD_RANGE = "10.213.0.0/24"
SERVICE_RANGE = "10.214.0.0/16"
API_SERVICE_IP = "10.214.0.1"  # first address of SERVICE_RANGE: the service `kubernetes`
NODE_BRIDGE = "wsnode0"
POD_BRIDGE = "wspods0"
POD_NETWORK = "weightsync"
CGROUP = "weightsync"
PAUSE_IMAGE = "localhost/pause:1"


@dataclass(frozen=True)
class Ports:
    """Ports of the programs; 0 where a program does not run."""

    etcd: int
    etcd_peer: int
    api: int
    controller_manager: int = 0
    scheduler: int = 0
    kubelet: int = 0
    kubelet_health: int = 0
    proxy_health: int = 0
    proxy_metrics: int = 0


NODE_PORTS = Ports(
    etcd=16379,
    etcd_peer=16380,
    api=16443,
    controller_manager=16257,
    scheduler=16259,
    kubelet=16250,
    kubelet_health=16248,
    proxy_health=16256,
    proxy_metrics=16249,
)


@dataclass(frozen=True)
class Layout:
    """Files of one cluster below `root`."""

    root: Path
    ports: Ports

    @property
    def url(self) -> str:
        """The API server, as this machine reaches it."""
        return f"https://127.0.0.1:{self.ports.api}"

    @property
    def records(self) -> Path:
        """Records of the processes."""
        return self.root / "processes"

    @property
    def logs(self) -> Path:
        """One log per program."""
        return self.root / "logs"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    @property
    def config(self) -> Path:
        """Configuration files of the programs."""
        return self.root / "config"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.root / "kubeconfig"

    @property
    def etcd(self) -> Path:
        """etcd's data."""
        return self.root / "etcd"

    @property
    def kubelet(self) -> Path:
        """kubelet's folder, with the pods' volumes."""
        return self.root / "kubelet"

    @property
    def containerd(self) -> Path:
        """containerd's folders, with images, containers and network namespaces."""
        return self.root / "containerd"

    @property
    def containerd_socket(self) -> Path:
        """containerd's socket."""
        return self.containerd / "containerd.sock"

    @property
    def cni(self) -> Path:
        """Configuration and address leases of the pod network."""
        return self.root / "cni"

    @property
    def manifest(self) -> Path:
        """What runs, as it was meant: written last, when the cluster is ready."""
        return self.root / "cluster.json"


def node() -> Layout:
    """The layout of this machine's node."""
    return Layout(NODE_FOLDER, NODE_PORTS)
