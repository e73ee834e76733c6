"""The base image: a minimal Debian with Python and the RDMA user-space libraries, made by debootstrap."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.images import buildah
from tools.images.archives import Archive, forget_old
from tools.setup import cache, commands, debian

NAME = "localhost/weightsync-base"
TAG = "bookworm"
SUITE = "bookworm"
PACKAGES = ("ca-certificates", "ibverbs-providers", "libcurl4", "libibverbs1", "libnuma1", "python3", "python3-venv")
# Nothing in a pod reads these, and together they are a quarter of the whole.
UNUSED = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
)
RECIPE = "1"  # raise it when the commands below change


def key() -> str:
    """Hash of what the image is made of."""
    return cache.key(RECIPE, SUITE, *PACKAGES, *UNUSED, debian.architecture())


def prepare() -> Archive:
    """Return the base image's archive, made if it is not in the cache."""
    name = f"{NAME}:{key()}"

    def build(folder: Path) -> None:
        system = folder / "system"
        log = cache.log_file("image-base")
        include = f"--include={','.join(PACKAGES)}"
        commands.run(["debootstrap", "--variant=minbase", include, SUITE, system], log)
        for unused in UNUSED:
            shutil.rmtree(system / unused, ignore_errors=True)
            (system / unused).mkdir(parents=True)
        with buildah.building():
            _commit(system, name)
            buildah.run("push", name, f"docker-archive:{folder / 'image.tar'}:{name}")
        shutil.rmtree(system)

    entry = cache.entry("image-base", key(), build)
    forget_old(entry.parent, entry)
    return Archive(entry / "image.tar", name, f"{NAME}:{TAG}")


def _commit(system: Path, name: str) -> None:
    container = buildah.ask("from", "scratch")
    buildah.run("add", container, system, "/")
    buildah.run("config", "--cmd", "/bin/bash", "--env", "LANG=C.UTF-8", container)
    buildah.run("commit", "--rm", container, name)
    buildah.run("tag", name, f"{NAME}:{TAG}")


def ensure_in_store(archive: Archive) -> None:
    """Put the image into buildah's store, where the store was emptied since the archive was made."""
    if not buildah.ask("images", "--quiet", "--filter", f"reference={archive.name}"):
        buildah.run("pull", f"docker-archive:{archive.path}")
