"""Configuration and command line of containerd, and of the pod network that it sets up. Nothing is started here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tools.cluster import layout as places
from tools.cluster.layout import Layout

CNI_PROGRAMS = Path("/usr/lib/cni")  # of Debian's containernetworking-plugins
RUNC = Path("/usr/sbin/runc")


def containerd(programs: Mapping[str, Path], layout: Layout) -> list[str]:
    """containerd's command line; it finds its shim beside itself by PATH."""
    return [str(programs["containerd"]), "--config", str(layout.config / "containerd.toml")]


def containerd_config(layout: Layout) -> str:
    """containerd.toml: every folder that containerd would take outside the cluster's own is named."""
    base = layout.containerd
    return f"""version = 3
root = "{base / "root"}"
state = "{base / "state"}"
[grpc]
  address = "{layout.containerd_socket}"
[plugins.'io.containerd.internal.v1.opt']
  path = "{base / "opt"}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{places.PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  # Lowering the score takes CAP_SYS_RESOURCE, which root in a container lacks: every pod would fail to start.
  restrict_oom_score_adj = true
  # In the cluster's folder, so that what is left of a killed node can be told from another runtime's.
  netns_mounts_under_state_dir = true
  # By default every second, from each pod's shim: half of what an emulated node has, and nothing here reads it.
  stats_collect_period = "1h"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "{RUNC}"
  Root = "{base / "runc"}"
  SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{CNI_PROGRAMS}"]
  conf_dir = "{layout.cni / "conf"}"
"""


def network_config(layout: Layout) -> str:
    """The pod network: a bridge, addresses leased from files, host ports."""
    addresses = {
        "type": "host-local",
        "dataDir": str(layout.cni / "leases"),
        "ranges": [[{"subnet": places.NODE_POD_RANGE}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": places.POD_BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": addresses,
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": places.POD_NETWORK, "plugins": [bridge, ports]}, indent=2)
