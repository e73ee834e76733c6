"""The project's image: the repository's Dockerfile on the base image."""

from __future__ import annotations

from pathlib import Path

from tools.images import base, buildah
from tools.images.archives import Archive, forget_old
from tools.setup import cache, progress

NAME = "localhost/weightsync"
TAG = "dev"
# What the Dockerfile copies. A new file in it must be named here too, or a change of it goes unnoticed.
INPUTS = [
    "Dockerfile",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "requirements/constraints.txt",
    "sdk",
    "operator",
    "agent",
    "cli",
]


def key(root: Path) -> str:
    """Hash of what the image is made of."""
    return cache.key(base.key(), *cache.tree(root, INPUTS))


def prepare(root: Path, base_image: Archive) -> Archive:
    """Return the archive of the image for the clone at `root`, built if it is not in the cache."""
    wanted = key(root)
    name = f"{NAME}:{wanted}"

    def build(folder: Path) -> None:
        base.ensure_in_store(base_image)
        # Layers are kept between builds: after a change of the sources only the last steps run again.
        argv = [
            "bud",
            "--layers",
            "--pull-never",
            *buildah.build_flags(),
            "--build-arg",
            f"BASE_IMAGE={base_image.name}",
        ]
        buildah.run(*argv, "--file", root / "Dockerfile", "--tag", name, root)
        buildah.run("push", name, f"docker-archive:{folder / 'image.tar'}:{name}")

    entry = cache.entry("image-weightsync", wanted, build)
    for old in forget_old(entry.parent, entry):
        _forget(f"{NAME}:{old.name}")
    return Archive(entry / "image.tar", name, f"{NAME}:{TAG}")


def _forget(name: str) -> None:
    if buildah.ask("images", "--quiet", "--filter", f"reference={name}"):
        with progress.step(f"image {name}") as step:
            buildah.run("rmi", name)
            step.end("forgotten")
