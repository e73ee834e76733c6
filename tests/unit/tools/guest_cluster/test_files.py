"""What a guest that becomes a node is told, and what of a node counts; nothing is booted."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools.cluster import layout, runtime
from tools.cluster.layout import Layout
from tools.cluster.pki import Authority
from tools.guest import wire
from tools.guest_cluster import cluster, control, node_files
from tools.guest_cluster.places import IN_GUEST, PORTS, RESOURCE, nodes

FIRST, SECOND = nodes(2)
PROGRAMS = {
    name: Path("/x") / name for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
}


def test_a_node_has_the_files_that_its_configuration_names(tmp_path: Path) -> None:
    """Each file below the cluster's folder in the guest is one that the guest copies there, or makes itself."""
    made = control.write(Layout(tmp_path / "control", PORTS), [FIRST, SECOND])
    folder = tmp_path / "node"
    node_files.write(folder, FIRST, [SECOND], made)
    text = "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    named = {Path(path).relative_to(IN_GUEST.root) for path in re.findall(rf"{IN_GUEST.root}/[\w./-]+", text)}
    copied = {path.relative_to(folder) for path in folder.rglob("*")}
    assert {Path("ca.crt"), Path("kubelet.crt"), Path("kubelet.key"), Path("cni")} <= named & copied
    assert {path.parts[0] for path in named - copied} == {"containerd", "leases"}


def test_pods_of_the_other_guests_are_reached_at_their_guests(tmp_path: Path) -> None:
    """One line for each other guest, and ranges that do not overlap."""
    made = control.write(Layout(tmp_path / "control", PORTS), [FIRST, SECOND])
    node_files.write(tmp_path / "node", FIRST, [SECOND], made)
    assert (tmp_path / "node" / "routes").read_text() == f"{SECOND.pods} {wire.address(2)}\n"
    assert FIRST.pods != SECOND.pods
    assert json.loads(node_files.network(FIRST))["plugins"][0]["ipam"]["ranges"] == [[{"subnet": FIRST.pods}]]


def test_containerd_finds_the_network_where_the_guest_has_it() -> None:
    """The configuration is the local node's, and its folder of networks the one that is copied."""
    told = tomllib.loads(node_files.containerd())["plugins"]["io.containerd.cri.v1.runtime"]
    assert told["cni"]["conf_dir"] == f"{IN_GUEST.root}/cni"
    assert told["containerd"]["runtimes"]["runc"]["options"]["BinaryName"] == str(runtime.RUNC)


def test_the_api_server_answers_where_pods_look_for_it(tmp_path: Path) -> None:
    """At the service's address and port, under a certificate for it; it says that it is at the wire."""
    identity = control.identities([FIRST])["kube-apiserver"]
    assert {f"IP:{layout.API_SERVICE_IP}", f"IP:{wire.GATEWAY}"} <= set(identity.served)
    lines = control.commands(PROGRAMS, Layout(tmp_path, PORTS), Authority(tmp_path))
    assert "--secure-port=443" in lines["kube-apiserver"]
    assert [word for word in lines["kube-apiserver"] if "advertise" in word][-1].endswith(wire.GATEWAY)
    assert set(lines) == set(control.PROGRAMS), "what is started is also ended"


def test_every_kubelet_is_its_own_node() -> None:
    """Admission lets it write its own node alone."""
    made = control.identities([FIRST, SECOND])
    assert [made[node.name].user for node in (FIRST, SECOND)] == ["system:node:guest-1", "system:node:guest-2"]


def node(ready: str | None = None, devices: str | None = None) -> dict[str, Any]:
    """A node as the API server has it."""
    conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
    return {"status": {"conditions": conditions, "allocatable": {} if devices is None else {RESOURCE: devices}}}


@pytest.mark.parametrize(
    ("found", "ready", "offers"),
    [
        pytest.param({}, False, False, id="there is no node yet"),
        pytest.param(node(), False, False, id="it has said nothing"),
        pytest.param(node("False"), False, False, id="its network is not up"),
        pytest.param(node("True"), True, False, id="the plugin is not there"),
        pytest.param(node("True", "0"), True, False, id="the plugin found no device"),
        pytest.param(node("True", "100"), True, True, id="pods may ask for a device"),
    ],
)
def test_when_a_node_counts(found: dict[str, Any], ready: bool, offers: bool) -> None:
    """Ready and offering are two things: the plugin comes later."""
    assert (cluster.is_ready(found), cluster.offers(found)) == (ready, offers)
