"""The project's image: the repository's Dockerfile on the base image."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tools.images import base, buildah
from tools.images.archives import Archive, forget_old
from tools.setup import cache, progress
from tools.setup.errors import SetupError

NAME = "localhost/weightsync"
TAG = "dev"
COPIED_AT = 1_000_000_000  # seconds since 1970; any moment, as long as it is always the same
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
        context = folder / "context"
        copy_inputs(root, context)
        if key(context) != wanted:
            raise SetupError("the sources changed while they were copied for the image; run it again")
        with buildah.building():
            base.ensure_in_store(base_image)
            flags = [*buildah.build_flags(), "--build-arg", f"BASE_IMAGE={base_image.name}"]
            where: list[str | Path] = ["--file", context / "Dockerfile", "--tag", name, context]
            # Layers are kept between builds: after a change of the sources only the last steps run again.
            buildah.run("bud", "--layers", "--pull-never", *flags, *where)
            buildah.run("push", name, f"docker-archive:{folder / 'image.tar'}:{name}")
        shutil.rmtree(context)

    entry = cache.entry("image-weightsync", wanted, build)
    for old in forget_old(entry.parent, entry):
        _forget(f"{NAME}:{old.name}")
    return Archive(entry / "image.tar", name, f"{NAME}:{TAG}")


def copy_inputs(root: Path, context: Path) -> None:
    """Copy INPUTS to `context`, all with the same time and mode: to buildah another one makes another file."""
    for path in cache.files(root, INPUTS):
        target = context / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o644)
        os.utime(target, (COPIED_AT, COPIED_AT))


def _forget(name: str) -> None:
    if buildah.ask("images", "--quiet", "--filter", f"reference={name}"):
        with progress.step(f"image {name}") as step:
            buildah.run("rmi", name)
            step.end("forgotten")
