"""Programs of the local cluster, built from Go modules by name.

Modules of their own, each with its committed go.mod and go.sum, because one would mix the gRPC and OpenTelemetry
releases of etcd, containerd and Kubernetes. Every group below is a cache entry of its own: the integration tests need
only `etcd` and `kube-apiserver`, `kube-router` is for tests of NetworkPolicies alone, and the device plugin for nodes
in guests.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.setup import cache, commands
from tools.setup.errors import SetupError

MODULES = Path(__file__).resolve().parents[1] / "cluster" / "go"
# Statically linked and free of local paths, so that equal inputs give equal programs on every machine.
BUILD_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath -buildvcs=false -mod=readonly"}
KUBERNETES = "k8s.io/kubernetes"
CONTAINERD = "github.com/containerd/containerd/v2"
ETCD = "go.etcd.io/etcd/server/v3"
POLICIES = "kube-router"
DEVICE_PLUGIN = "rdma-device-plugin"


@dataclass(frozen=True)
class Group:
    """Programs built by one `go build` and cached together."""

    name: str
    module: str  # folder below MODULES
    packages: dict[str, str]  # program -> package


# The API server comes before the other control-plane programs: it is what is waited for, and they then reuse most of
# what was compiled for it.
GROUPS = {
    group.name: group
    for group in (
        Group("etcd", "etcd", {"etcd": ETCD}),
        Group("kube-apiserver", "kube", {"kube-apiserver": f"{KUBERNETES}/cmd/kube-apiserver"}),
        Group(
            "kube-node",
            "kube",
            {
                name: f"{KUBERNETES}/cmd/{name}"
                for name in ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
            },
        ),
        Group(
            "containerd",
            "containerd",
            {name: f"{CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
        ),
        Group(POLICIES, POLICIES, {POLICIES: "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"}),
        # By a module of ours: `go install` refuses one whose go.mod replaces anything.
        Group(
            DEVICE_PLUGIN,
            DEVICE_PLUGIN,
            {"k8s-rdma-shared-dp": "github.com/Mellanox/k8s-rdma-shared-dev-plugin/cmd/k8s-rdma-shared-dp"},
        ),
    )
}
LIGHT = ("etcd", "kube-apiserver")
NODE = (*LIGHT, "kube-node", "containerd")


def light() -> dict[str, Path]:
    """Programs of the light cluster; those of `KUBEBUILDER_ASSETS` where it is set.

    Raises:
        SetupError: that folder lacks one, or there is no Go to build them.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets is None:
        return programs(LIGHT)
    found = {name: Path(assets) / name for name in LIGHT}
    for name, path in found.items():
        if not os.access(path, os.X_OK):
            raise SetupError(f"KUBEBUILDER_ASSETS is {assets}, which has no executable {name}; unset it to build one")
    return found


def full() -> dict[str, Path]:
    """Programs of the whole cluster, built where they are not in the cache."""
    return programs(NODE)


def policies() -> Path:
    """The program that enforces NetworkPolicies, built where it is not in the cache."""
    return programs((POLICIES,))[POLICIES]


def device_plugin() -> dict[str, Path]:
    """The stock plugin that gives pods shared RDMA devices, built where it is not in the cache."""
    return programs((DEVICE_PLUGIN,))


def programs(groups: tuple[str, ...]) -> dict[str, Path]:
    """Build what is missing of `groups`. Returns the path of each program."""
    found: dict[str, Path] = {}
    for name in groups:
        group = GROUPS[name]
        entry = cache.entry(f"bin-{name}", _key(group), partial(_build, group))
        found.update({program: entry / program for program in group.packages})
    return found


def _key(group: Group) -> str:
    module = MODULES / group.module
    return cache.key(
        (module / "go.mod").read_bytes(),
        (module / "go.sum").read_bytes(),
        needed_go(module),
        *(f"{name}={value}" for name, value in sorted(BUILD_ENV.items())),
        _link_flags(group),
        *group.packages.values(),
        os.uname().machine,
    )


def _build(group: Group, folder: Path) -> None:
    module = MODULES / group.module
    go = find_go(module)
    log = cache.log_file(f"bin-{group.name}")
    environment = {**BUILD_ENV, "GOBIN": "", "GOOS": "", "GOARCH": ""}
    # With one package -o names a file, with several a folder; a package's program is named by its last path element,
    # which is `v3` for etcd.
    target = folder / next(iter(group.packages)) if len(group.packages) == 1 else f"{folder}/"
    packages = list(group.packages.values())
    commands.run(
        [go, "build", "-ldflags", _link_flags(group), "-o", target, *packages], log, cwd=module, extra_env=environment
    )


def _link_flags(group: Group) -> str:
    if group.module != "kube":
        return "-s -w"
    version = required_version(MODULES / "kube", KUBERNETES)
    major, minor, _ = version.removeprefix("v").split(".", 2)
    # Both packages: without them the server calls itself v0.0.0-master and clients refuse the skew.
    stamps = [
        f"-X {package}.{variable}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for variable, value in (("gitVersion", version), ("gitMajor", major), ("gitMinor", minor))
    ]
    return " ".join(["-s -w", *stamps])


def required_version(module: Path, dependency: str) -> str:
    """The version of `dependency` that the go.mod in `module` requires."""
    text = (module / "go.mod").read_text(encoding="utf-8")
    found = re.search(rf"^(?:require)?\s*{re.escape(dependency)} (v\S+)", text, re.MULTILINE)
    if found is None:
        raise SetupError(f"{module / 'go.mod'} does not require {dependency}")
    return found.group(1)


def needed_go(module: Path) -> str:
    """The Go release that `module` asks for, such as 1.26.0."""
    found = re.search(r"^go (\S+)$", (module / "go.mod").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SetupError(f"{module / 'go.mod'} has no line `go VERSION`")
    return found.group(1)


def find_go(module: Path) -> str:
    """Return the `go` program, checked to be able to build `module`.

    From 1.21 on, Go fetches the release that a module asks for by itself, unless GOTOOLCHAIN forbids it.
    """
    needed = needed_go(module)
    advice = (
        f"install Go {needed} or newer from https://go.dev/dl/ (into /usr/local/go or on PATH); or set "
        "KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver for the tests, and KUBECONFIG to a cluster for "
        "the demo: then nothing is built"
    )
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        raise SetupError(f"no Go on this machine; {advice}")
    version = commands.output([go, "env", "GOVERSION"]).removeprefix("go").split(" ")[0]
    able = _release(needed) if commands.output([go, "env", "GOTOOLCHAIN"]) == "local" else (1, 21)
    if _release(version) < able:
        raise SetupError(f"Go {version} at {go} is too old; {advice}")
    return go


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
