"""Where the demo runs: this machine's own node, set up and started here, or the cluster that the user gave."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.cluster import node
from tools.demo import sources
from tools.demo.errors import DemoError
from tools.demo.options import Options
from tools.images import build, load
from tools.setup import examples_env, helm

LOCAL_IMAGE, LOCAL_BASE = "localhost/weightsync:dev", "localhost/weightsync-base:bookworm"


@dataclass(frozen=True)
class Mounts:
    """Folders of this machine that the example pods mount instead of carrying them in an image."""

    sources: Path
    packages: Path


@dataclass(frozen=True)
class Site:
    """image: operator and agent; example: trainer and engine. mounts: None on a cluster that was given."""

    kubeconfig: Path
    kubectl: Path
    helm: Path
    image: str
    example: str
    mounts: Mounts | None

    @property
    def local(self) -> bool:
        """Pods run on this machine, so its clock is theirs."""
        return self.mounts is not None


def prepare(options: Options, root: Path) -> Site:
    """Set everything up, with progress on standard error. Raises SetupError or ClusterError."""
    programs = {"kubectl": kubectl(), "helm": helm.executable()}
    if options.kubeconfig is not None:
        prefix, tag = options.image_prefix, options.image_tag
        return Site(
            options.kubeconfig,
            image=f"{prefix}/weightsync:{tag}",
            example=f"{prefix}/weightsync-example:{tag}",
            mounts=None,
            **programs,
        )
    archives = build.prepare(root)
    packages = examples_env.prepare(root)
    copied = sources.prepare(root)
    kubeconfig = node.up().kubeconfig
    if kubeconfig is None:
        raise DemoError("the local node ended right after its start; `python3 tools/cluster status` says what runs")
    load.load(archives)
    return Site(kubeconfig, image=LOCAL_IMAGE, example=LOCAL_BASE, mounts=Mounts(copied, packages), **programs)


def kubectl() -> Path:
    """The development environment's own, else the one on PATH."""
    beside = Path(sys.executable).with_name("kubectl")
    found = beside if beside.exists() else shutil.which("kubectl")
    if found is None:
        raise DemoError("no kubectl: `python3 tools/setup env` makes the environment that holds one")
    return Path(found)
