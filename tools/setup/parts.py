"""The command line of the set-up: which parts there are and in which order they are made."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.setup import (
    debian,
    environment,
    examples_env,
    go_binaries,
    helm,
    oldest_env,
    prometheus,
    sglang_env,
    tools_env,
)
from tools.setup.errors import SetupError

ROOT = Path(__file__).resolve().parents[2]


def _light() -> None:
    go_binaries.light()


def _binaries() -> None:
    go_binaries.full()
    go_binaries.policies()
    helm.executable()


def _guest_cluster() -> None:
    debian.install_guest_node()
    go_binaries.full()
    go_binaries.device_plugin()
    helm.executable()


def _images() -> None:
    from tools.images import build  # noqa: PLC0415 - the images import this package in turn

    build.prepare(ROOT)


# In the order in which `all` makes them.
PARTS: dict[str, tuple[Callable[[], object], str]] = {
    "debian": (debian.install, "Debian packages (as root)"),
    "libraries": (debian.install_libraries, "the shared libraries of Mooncake only (as root, where missing)"),
    "guest": (debian.install_guest, "Debian packages for tests over real verbs in guests (as root)"),
    "guest-cluster": (_guest_cluster, "Debian packages and programs for guests as nodes of a cluster (as root)"),
    "env": (lambda: environment.prepare(ROOT), "the development environment, linked as .venv"),
    "sglang": (lambda: sglang_env.prepare(ROOT), "SGLang's packages, for the tests of layouts"),
    "oldest": (lambda: oldest_env.prepare(ROOT), "the oldest packages that the sdk allows, for its test"),
    "tools": (lambda: tools_env.prepare(ROOT), "the programs that build the documentation and look for flaws"),
    "prometheus": (prometheus.programs, "Prometheus and promtool, for tests of alerts and dashboard (from Debian)"),
    "light": (_light, "etcd and kube-apiserver, for integration tests"),
    "binaries": (_binaries, "every program of the local cluster, and helm"),
    "images": (_images, "the images (as root)"),
    "examples-env": (lambda: examples_env.prepare(ROOT), "the packages that the example pods mount (as root)"),
}
# What `all` leaves out: parts of other parts, for those who need no more, and what `make rdma-test` and
# `make rdma-e2e` alone need.
SUBSETS = ("libraries", "guest", "guest-cluster", "light")


def main(arguments: Sequence[str]) -> int:
    """Make the parts named in `arguments`. Returns the exit status."""
    listed = "\n".join(f"  {name:<14}{text}" for name, (_, text) in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="tools/setup",
        description="Set up what the other targets need; what is in the cache is not made again.",
        epilog=f"parts:\n{listed}\n  {'all':<14}all of them",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "all"], metavar="PART")
    chosen = parser.parse_args(arguments).parts
    names = [name for name in PARTS if name in chosen or ("all" in chosen and name not in SUBSETS)]
    try:
        for name in names:
            PARTS[name][0]()
    except SetupError as error:
        sys.stderr.write(f"set-up failed: {error}\n")
        return 1
    return 0
