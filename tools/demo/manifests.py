"""The kustomization that lays the demo's choices over examples/kubernetes/base. Pure but for writing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tools.demo.site import Mounts, Site

BASE = Path("examples/kubernetes/base")
SOURCES, PACKAGES = "/opt/example", "/opt/packages"

Json = dict[str, Any]


def split_image(image: str) -> tuple[str, str]:
    """Name and tag; a colon before the last slash belongs to a registry's port."""
    name, colon, tag = image.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (image, "latest")


def kustomization(site: Site, namespace: str, steps: int, base: str, more: Sequence[Json] = ()) -> Json:
    """The document; base: path of the base from the kustomization's folder; more: further patches."""
    images = [
        {"name": ours, "newName": split_image(image)[0], "newTag": split_image(image)[1]}
        for ours, image in (("weightsync", site.image), ("weightsync-example", site.example))
    ]
    # Both containers stand first in their pod; a strategic patch finds them by name, a list of arguments is replaced.
    trainer: Json = {"name": "trainer", "args": ["--steps", str(steps), "--stay"]}
    patches = [_patch("StatefulSet", "trainer", trainer, site.mounts, [SOURCES])]
    patches.append(
        _patch("Deployment", "rollout", {"name": "engine"}, site.mounts, ["/dev/weightsync/python", SOURCES])
    )
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": [base],
        "images": images,
        "patches": [{"patch": yaml.safe_dump(patch)} for patch in [*patches, *more]],
    }


def _patch(kind: str, name: str, container: Json, mounts: Mounts | None, path: list[str]) -> Json:
    spec: Json = {"containers": [container]}
    if mounts is not None:
        container["env"] = [
            {"name": "PYTHONPATH", "value": ":".join([*path, PACKAGES])},
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "PYTHONUNBUFFERED", "value": "1"},
        ]
        container["volumeMounts"] = [
            {"name": "sources", "mountPath": SOURCES, "readOnly": True},
            {"name": "packages", "mountPath": PACKAGES, "readOnly": True},
        ]
        spec["volumes"] = [
            {"name": "sources", "hostPath": {"path": str(mounts.sources), "type": "Directory"}},
            {"name": "packages", "hostPath": {"path": str(mounts.packages), "type": "Directory"}},
        ]
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"template": {"spec": spec}},
    }


def small(kind: str, name: str, container: str) -> Json:
    """A patch by which ten pods fit on a node of two processors: they share them, the agents with the larger part."""
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "template": {
                "spec": {
                    "initContainers": [{"name": "weightsync-agent", "resources": {"requests": {"cpu": "90m"}}}],
                    "containers": [{"name": container, "resources": {"requests": {"cpu": "60m"}}}],
                }
            }
        },
    }


def write(folder: Path, root: Path, site: Site, namespace: str, steps: int, *, more: Sequence[Json] = ()) -> Path:
    """Write kustomization.yaml into ``folder`` and return the folder, for `kubectl apply -k`."""
    folder.mkdir(parents=True, exist_ok=True)
    base = os.path.relpath(root / BASE, folder)
    document = kustomization(site, namespace, steps, base, more)
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder
