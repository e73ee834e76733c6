"""The node: starting it, ending it, saying what runs. Root only; one per machine."""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tools.cluster import (
    clearing,
    containers,
    control_groups,
    former,
    host,
    kubeconfig,
    pause,
    plan,
    processes,
    waiting,
)
from tools.cluster import layout as places
from tools.cluster.api import Client
from tools.cluster.errors import ClusterError
from tools.cluster.layout import Layout
from tools.cluster.pki import Authority
from tools.setup import debian, go_binaries, locks, progress

READY_SECONDS = 120.0
DEFAULT_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"
NODE_OBJECT = f"/api/v1/nodes/{places.NODE_NAME}"


@dataclass(frozen=True)
class Status:
    """What of the node runs."""

    ready: bool
    kubeconfig: Path | None
    url: str
    processes: dict[str, bool]

    def document(self) -> dict[str, Any]:
        """The same as JSON types."""
        path = None if self.kubeconfig is None else str(self.kubeconfig)
        return {"ready": self.ready, "kubeconfig": path, "url": self.url, "processes": self.processes}


def up() -> Status:
    """Start the node, or find that it runs as it should. What is left of another one is removed first.

    Raises:
        ClusterError: not root, or it does not become ready.
        SetupError: programs or packages are missing and cannot be made or installed.
    """
    _require_root()
    debian.install(debian.NODE)
    programs = go_binaries.full()
    layout = places.node()
    wanted = plan.make(programs, layout)
    with _locked(), progress.step("cluster") as step:
        found = status()
        if found.ready and _fingerprint(layout) == wanted.fingerprint():
            step.end(f"runs already at {layout.url}")
            return found
        removed = clearing.clear(layout)
        if removed:
            step.say(f"removed what was there: {removed}")
        _start(wanted, programs, layout, step.say)
        step.end(f"ready at {layout.url}; export KUBECONFIG={layout.kubeconfig}")
        return status()


def down() -> bool:
    """End the node and remove everything that it leaves. Returns whether anything was there."""
    _require_root()
    with _locked(), progress.step("cluster") as step:
        removed = clearing.clear(places.node())
        step.end(f"removed: {removed}" if removed else "was not there")
        return bool(removed)


def status() -> Status:
    """Say what of the node runs; changes nothing."""
    layout = places.node()
    records = processes.Keeper(layout.records).records()
    alive = {name: name in records and processes.is_alive(records[name]) for name in clearing.STOP_ORDER}
    ready = all(alive.values()) and layout.manifest.exists() and _node_is_ready(client(layout))
    return Status(ready, layout.kubeconfig if ready else None, layout.url, alive)


def kubeconfig_path() -> Path:
    """Where the administrator's kubeconfig lies while the node runs."""
    return places.node().kubeconfig


def runtime_client() -> containers.Client:
    """The running node's containerd.

    Raises:
        ClusterError: it does not run.
    """
    layout = places.node()
    record = processes.Keeper(layout.records).records().get("containerd")
    if record is None or not processes.is_alive(record):
        raise ClusterError("the local cluster does not run; `python3 tools/cluster up` starts it")
    return containers.Client(Path(record.argv[0]).with_name("ctr"), layout.containerd_socket)


def process(name: str) -> int:
    """Process id of one of the node's programs, such as ``kube-apiserver``.

    Raises:
        ClusterError: it does not run.
    """
    record = processes.Keeper(places.node().records).records().get(name)
    if record is None or not processes.is_alive(record):
        raise ClusterError(f"{name} does not run; `python3 tools/cluster status` says what does")
    return record.pid


def client(layout: Layout) -> Client:
    """The administrator's client."""
    authority = Authority(layout.pki)
    return Client(layout.ports.api, authority.pair.certificate, authority.pair_of("admin"))


def _start(wanted: plan.Plan, programs: Mapping[str, Path], layout: Layout, say: Callable[[str], None]) -> None:
    _write_files(wanted, layout)
    former.note(layout.root / clearing.FORMER_FILE)
    former.change()
    host.add_node_address()
    host.let_pods_through()
    control_groups.make()
    keeper = processes.Keeper(layout.records)
    # containerd looks for its shim on PATH.
    path = f"{programs['containerd-shim-runc-v2'].parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    started: list[processes.Record] = []

    def start(*names: str) -> None:
        for name in names:
            log = layout.logs / f"{name}.log"
            started.append(keeper.start(name, wanted.commands[name], log, {"PATH": path}))

    def wait(what: str, condition: Callable[[], bool]) -> None:
        waiting.until(what, condition, started, layout.logs, READY_SECONDS)
        say(what)

    administrator = client(layout)
    start("containerd", "etcd", "kube-apiserver")
    runtime = containers.Client(programs["ctr"], layout.containerd_socket)
    wait("container runtime answers", runtime.answers)
    runtime.load(pause.archive(os.uname().machine))
    wait("API server is ready", administrator.is_ready)
    start("kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
    wait("node is ready", lambda: _node_is_ready(administrator))
    wait("services are routed", lambda: _answers(f"http://127.0.0.1:{layout.ports.proxy_health}/healthz"))
    wait("service accounts are made", lambda: administrator.has(DEFAULT_ACCOUNT))
    layout.manifest.write_text(json.dumps({"fingerprint": wanted.fingerprint()}), encoding="utf-8")


def _write_files(wanted: plan.Plan, layout: Layout) -> None:
    layout.root.mkdir(parents=True)
    authority = Authority(layout.pki)
    authority.create()
    for name, identity in plan.IDENTITIES.items():
        authority.issue(name, identity.user, identity.group, identity.served)
    kubeconfig.write(layout.kubeconfig, layout.url, authority.pair.certificate, authority.pair_of("admin"))
    for name in plan.CLIENTS:
        path = plan.kubeconfig_of(layout, name)
        kubeconfig.write(path, layout.url, authority.pair.certificate, authority.pair_of(name))
    for path, text in wanted.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _node_is_ready(administrator: Client) -> bool:
    try:
        code, body = administrator.call("GET", NODE_OBJECT)
    except OSError:
        return False
    if code != HTTPStatus.OK:
        return False
    conditions = json.loads(body).get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _answers(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _fingerprint(layout: Layout) -> str:
    return str(json.loads(layout.manifest.read_text(encoding="utf-8"))["fingerprint"])


def _locked() -> AbstractContextManager[None]:
    return locks.exclusive(places.NODE_LOCK)


def _require_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError("the local node needs root; or set KUBECONFIG to a cluster that you have")
    if shutil.which("dpkg-query") is None:
        raise ClusterError("the local node needs Debian; or set KUBECONFIG to a cluster that you have")
