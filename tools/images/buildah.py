"""Calls of `buildah`, with an image store of its own in the cache: no daemon, no other tool's images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.setup import cache, commands, locks

LOG = "images"
KEPT_LAYERS = 100  # some 10 to a build
CERTIFICATES = Path("/etc/ssl/certs")


def store() -> Path:
    """Folder of the image store."""
    return cache.root() / "buildah"


@contextmanager
def building() -> Iterator[None]:
    """Hold the store for one build, after removing what a killed build left in it."""
    with locks.exclusive(cache.root() / "buildah.lock"):
        run("rm", "--all")
        if len(ask("images", "--all", "--quiet").split()) > KEPT_LAYERS:
            # Layers that no image has any more, those of the next build included: it takes a minute longer, once.
            run("rmi", "--prune")
        yield


def run(*words: str | Path, cwd: Path | None = None) -> None:
    """Run one buildah command."""
    commands.run([*_start(), *words], cache.log_file(LOG), cwd=cwd, extra_env=_environment())


def ask(*words: str | Path) -> str:
    """Run one buildah command. Returns what it prints."""
    return commands.output([*_start(), *words], extra_env=_environment())


def build_flags() -> list[str | Path]:
    """Flags of `buildah bud` that let the steps of a build reach the package index as this machine does.

    The machine's certificates are mounted, not copied: a proxy's authority does not get into the image. pip's cache
    is mounted too, so that a package is fetched once.
    """
    downloads = cache.root() / "pip"
    downloads.mkdir(parents=True, exist_ok=True)
    bundle = (
        os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE") or str(CERTIFICATES / "ca-certificates.crt")
    )
    flags: list[str | Path] = ["--network", "host", "--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
    flags += ["--volume", f"{downloads}:/root/.cache/pip"]
    if Path(bundle).exists() and CERTIFICATES in Path(bundle).parents:
        flags += ["--build-arg", f"PIP_CERT={bundle}"]
    if index := os.environ.get("PIP_INDEX_URL"):
        flags += ["--build-arg", f"PIP_INDEX_URL={index}"]
    return flags


def _start() -> list[str | Path]:
    base = store()
    return ["buildah", "--root", base / "storage", "--runroot", base / "run"]


def _environment() -> dict[str, str]:
    # chroot: build steps run without a container engine, also where namespaces may not be made.
    return {
        "BUILDAH_ISOLATION": "chroot",
        "STORAGE_DRIVER": os.environ.get("STORAGE_DRIVER", "vfs" if _is_overlay(store()) else "overlay"),
    }


def _is_overlay(folder: Path) -> bool:
    """Whether `folder` lies on an overlay file system, as in most containers: overlays cannot be stacked on it."""
    folder.mkdir(parents=True, exist_ok=True)
    return commands.output(["stat", "--file-system", "--format", "%T", folder]) == "overlayfs"
