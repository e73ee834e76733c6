"""Debian packages that the local cluster, the images and Mooncake need."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.setup import cache, commands, progress
from tools.setup.errors import SetupError

# Why each one: Mooncake's wheel links the first group; the rest is the node's runtime and the image tools.
TRANSFER = ("libibverbs1", "ibverbs-providers", "libnuma1", "libcurl4")
PYTHON = ("python3-venv",)
NODE = (
    "ca-certificates",
    "conntrack",
    "containernetworking-plugins",
    "iproute2",
    "iptables",
    "nftables",
    "openssl",
    "runc",
    "util-linux",
)
POLICIES = ("ipset",)  # what enforces NetworkPolicies keeps the pods' addresses in sets
IMAGES = ("buildah", "debootstrap", "gcc", "libc6-dev")
# For tests over real verbs in emulated guests: not part of ALL, as only those need them.
GUEST = (
    *TRANSFER,
    "busybox-static",
    "cpio",
    "ibverbs-utils",
    "iproute2",
    "kmod",
    "nftables",
    "qemu-system-x86",
    "rdma-core",
    "util-linux",
)
# For those that are the nodes of a cluster: the device plugin's library looks names of PCI devices up.
GUEST_NODE = (*GUEST, *NODE, "pci.ids")
ALL = (*TRANSFER, *PYTHON, *NODE, *POLICIES, *IMAGES)


def missing(packages: Sequence[str]) -> list[str]:
    """Those of `packages` that are not installed.

    Raises:
        SetupError: this is not a Debian system.
    """
    if shutil.which("dpkg-query") is None:
        raise SetupError(
            "the local cluster needs Debian or a system derived from it (dpkg-query is absent); set KUBECONFIG "
            f"to use a cluster that you have, or install by hand what these packages contain: {', '.join(packages)}"
        )
    asked = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *packages]
    # Status 1 says that some are unknown to dpkg, which is an answer too.
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    installed = {line.split()[0] for line in answer.stdout.splitlines() if line.endswith(" installed")}
    return [package for package in packages if package not in installed]


def install(packages: Sequence[str] = ALL) -> None:
    """Install what is missing of `packages`; the package lists are fetched only then."""
    with progress.step("debian packages") as step:
        wanted = missing(packages)
        if not wanted:
            step.end("all installed")
            return
        if os.geteuid() != 0:
            raise SetupError(
                f"Debian packages are missing and only root can install them: apt-get install {' '.join(wanted)}"
            )
        step.say(f"installing {' '.join(wanted)}")
        log = cache.log_file("debian")
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        commands.run(["apt-get", "update"], log, extra_env=quiet)
        commands.run(["apt-get", "install", "-y", "--no-install-recommends", *wanted], log, extra_env=quiet)
        step.end(f"installed {len(wanted)}")


def install_guest() -> None:
    """Install what boots guests with a soft-RoCE device."""
    install(GUEST)


def install_guest_node() -> None:
    """Install what boots guests that are the nodes of a cluster."""
    install(GUEST_NODE)


def install_libraries() -> None:
    """Install what Mooncake links; on other systems than Debian only say what that is."""
    if is_debian():
        install(TRANSFER)
        return
    with progress.step("libraries") as step:
        step.end(f"not a Debian system: Mooncake needs what these packages hold: {', '.join(TRANSFER)}")


def architecture() -> str:
    """Debian's name of this machine's architecture, such as amd64."""
    return commands.output(["dpkg", "--print-architecture"])


def is_debian() -> bool:
    """Whether dpkg manages this system."""
    return Path("/etc/debian_version").exists()
