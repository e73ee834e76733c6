"""The light cluster: etcd and an API server on free ports, as many of them at once as wanted.

Nothing runs pods, and no controller works: objects are what the tests write. Needs no root.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.cluster import control_plane, kubeconfig, processes, waiting
from tools.cluster import layout as places
from tools.cluster.api import Client
from tools.cluster.errors import ClusterError
from tools.cluster.layout import Layout, Ports
from tools.cluster.pki import Authority, Pair
from tools.setup import go_binaries, locks, progress

READY_SECONDS = 60.0
GRACE_SECONDS = 2.0
ATTEMPTS = 3
# What a light cluster's folder may hold: a folder that holds anything else is somebody's, and is not emptied.
OWN_NAMES = ("cluster.json", "config", "etcd", "kubeconfig", "logs", "pki", "processes")
# The first names are stopped first. The API server never ends by itself once etcd is gone.
STOP_ORDER = ("kube-apiserver", "etcd")


@dataclass(frozen=True)
class LightCluster:
    """A running light cluster and its administrator."""

    url: str
    kubeconfig: Path
    authority: Path
    admin: Pair
    folder: Path

    @property
    def client(self) -> Client:
        """The administrator's client."""
        return Client(int(self.url.rpartition(":")[2]), self.authority, self.admin)


@contextmanager
def running(folder: Path) -> Iterator[LightCluster]:
    """A light cluster in `folder` that ends with the block, and with this process however that ends."""
    try:
        yield up(folder, bound_to_caller=True)
    finally:
        down(folder)


def up(folder: Path, *, bound_to_caller: bool = False) -> LightCluster:
    """Start a light cluster in `folder`, or return the one that runs there.

    Args:
        folder: its state; made if absent, emptied if what is there does not run.
        bound_to_caller: the kernel ends the programs when the calling process ends.

    Raises:
        ClusterError: it does not become ready.
    """
    programs = go_binaries.light()
    with locks.exclusive(_lock(folder)):
        found = find(folder)
        if found is not None:
            return found
        attempt = 1
        while True:
            _remove(folder)
            try:
                with progress.step("light cluster") as step:
                    cluster = _start(programs, Layout(folder, _free_ports()), bound_to_caller)
                    step.end(f"ready at {cluster.url}")
                    return cluster
            except ClusterError as error:
                _stop(folder)
                # A free port can be taken by another process before the program binds it.
                if "address already in use" not in str(error) or attempt == ATTEMPTS:
                    raise
                attempt += 1


def down(folder: Path) -> bool:
    """End the light cluster in `folder` and remove the folder's contents. Returns whether anything ran."""
    with locks.exclusive(_lock(folder)):
        return _remove(folder)


def find(folder: Path) -> LightCluster | None:
    """The light cluster that runs in `folder`, ready for use; None where there is none."""
    manifest = folder / "cluster.json"
    if not manifest.exists():
        return None
    records = processes.Keeper(folder / "processes").records()
    if set(records) != set(STOP_ORDER) or not all(map(processes.is_alive, records.values())):
        return None
    cluster = _describe(Layout(folder, Ports(**json.loads(manifest.read_text(encoding="utf-8"))["ports"])))
    return cluster if cluster.client.is_ready() else None


def _start(programs: dict[str, Path], layout: Layout, bound_to_caller: bool) -> LightCluster:
    authority = Authority(layout.pki)
    authority.create()
    names = ("DNS:localhost", "DNS:kubernetes.default.svc", "IP:127.0.0.1", f"IP:{places.API_SERVICE_IP}")
    serving = authority.issue("kube-apiserver", "kube-apiserver", served=names)
    admin = authority.issue("admin", "admin", "system:masters")
    kubeconfig.write(layout.kubeconfig, layout.url, authority.pair.certificate, admin)
    keeper = processes.Keeper(layout.records)
    # setpriv turns into the program, under the same process id.
    prefix = [_setpriv(), "--pdeathsig", "KILL"] if bound_to_caller else []
    records = [
        keeper.start(name, [*prefix, *argv], layout.logs / f"{name}.log")
        for name, argv in (
            ("etcd", control_plane.etcd(programs, layout)),
            ("kube-apiserver", control_plane.light_api_server(programs, layout, authority, serving)),
        )
    ]
    cluster = _describe(layout)
    waiting.until("ready API server", cluster.client.is_ready, records, layout.logs, READY_SECONDS)
    manifest = {"ports": {"etcd": layout.ports.etcd, "etcd_peer": layout.ports.etcd_peer, "api": layout.ports.api}}
    layout.manifest.write_text(json.dumps(manifest), encoding="utf-8")
    return cluster


def _describe(layout: Layout) -> LightCluster:
    admin = Pair(layout.pki / "admin.crt", layout.pki / "admin.key")
    return LightCluster(layout.url, layout.kubeconfig, layout.pki / "ca.crt", admin, layout.root)


def _remove(folder: Path) -> bool:
    if not folder.exists():
        return False
    strangers = sorted(path.name for path in folder.iterdir() if path.name not in OWN_NAMES)
    if strangers:
        raise ClusterError(
            f"{folder} is not a light cluster's folder: it holds {', '.join(strangers)}; name another one"
        )
    ran = _stop(folder)
    shutil.rmtree(folder)
    return ran


def _stop(folder: Path) -> bool:
    keeper = processes.Keeper(folder / "processes")
    ran = [keeper.stop(name, GRACE_SECONDS) for name in STOP_ORDER]
    return any(ran)


def _lock(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _setpriv() -> str:
    found = shutil.which("setpriv")
    if found is None:
        raise ClusterError("setpriv is not installed; `apt-get install util-linux` installs it")
    return found


def _free_ports() -> Ports:
    """Three ports that nobody listens on now, held all at once so that they differ."""
    with ExitStack() as held:
        numbers = []
        for _ in range(3):
            listener = held.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            numbers.append(listener.getsockname()[1])
    return Ports(*numbers)


def default_folder(root: Path) -> Path:
    """Where the command line keeps the light cluster of the clone at `root`."""
    return Path(os.environ.get("WEIGHTSYNC_LIGHT_FOLDER", root / "build" / "light-cluster"))
