"""What a killed node left is told from what others have on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.cluster import layout, remains

ROOT = Path("/var/lib/weightsync-cluster")
MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:30 / /var/lib/weightsync-cluster/kubelet/pods/1/volumes/a rw - tmpfs tmpfs rw
31 22 0:31 / /var/lib/weightsync-cluster/containerd/state/a\\040b/rootfs rw - overlay overlay rw
32 22 0:32 / /var/lib/weightsync-cluster-other/kubelet rw - tmpfs tmpfs rw
33 30 0:33 / /var/lib/weightsync-cluster/kubelet/pods/1/volumes/a/inner rw - tmpfs tmpfs rw
"""
RULES = """\
*nat
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-DN-0a1b - [0:0]
:CNI-DN-ffff - [0:0]
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \\"weightsync\\" id: \\"c1\\"" -j CNI-DN-0a1b
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \\"other\\" id: \\"c2\\"" -j CNI-DN-ffff
-A CNI-DN-0a1b -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.213.0.5:80
COMMIT
"""


def test_mounts_below_the_folder_are_found_the_last_one_first() -> None:
    """Inner mounts before outer ones, blanks decoded, a folder with a longer name left alone."""
    assert remains.mounts_below(ROOT, MOUNTS) == [
        f"{ROOT}/kubelet/pods/1/volumes/a/inner",
        f"{ROOT}/containerd/state/a b/rootfs",
        f"{ROOT}/kubelet/pods/1/volumes/a",
    ]


def test_host_port_rules_of_other_networks_are_left_alone() -> None:
    """The rule that names this network, then the chain that it leads to."""
    rule, chain = remains.host_port_rules(RULES)
    assert '\\"weightsync\\"' in rule
    assert chain == "CNI-DN-0a1b"


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        pytest.param(["/x/containerd-shim-runc-v2", "-address", "SOCKET"], True, id="a shim of this containerd"),
        pytest.param(["/x/containerd-shim-runc-v2", "-address", "/run/c.sock"], False, id="a shim of another one"),
        pytest.param(["/bin/grep", "SOCKET"], False, id="another program that names the socket"),
    ],
)
def test_shims_are_told_by_their_runtime_s_socket(tmp_path: Path, argv: list[str], found: bool) -> None:
    """A process counts only if it is a shim AND serves this cluster's containerd."""
    place = layout.Layout(ROOT, layout.NODE_PORTS)
    words = [str(place.containerd_socket) if word == "SOCKET" else word for word in argv]
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes("\0".join(words).encode())
    assert remains.shims(place, tmp_path) == ([7] if found else [])
