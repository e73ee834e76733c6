"""The demo's job as one writes it where agents are injected: by a label, and without all that injection adds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.demo import manifests
from tools.demo.site import Site

Json = dict[str, Any]

LABEL = "weightsync.io/inject"
ROLES = {"trainer": "trainer", "rollout": "engine"}  # app label -> what is injected
HOOK = "/dev/weightsync/python:"
# What admission puts into a pod, by the field of its spec; `containers` keep all but their mounts.
ADDED = ("serviceAccountName", "automountServiceAccountToken", "readinessGates", "initContainers", "volumes")


def write(folder: Path, root: Path, site: Site, namespace: str, steps: int) -> Path:
    """A kustomization for `kubectl apply -k`, over a base of its own. Returns its folder."""
    base = folder / "base"
    base.mkdir(parents=True)
    for name in ("rollout.yaml", "trainer.yaml", "weightsync.yaml"):
        (base / name).write_text(yaml.safe_dump_all(_stripped(root / manifests.BASE / name)))
    listed = {"resources": ["rollout.yaml", "trainer.yaml", "weightsync.yaml"]}
    (base / "kustomization.yaml").write_text(yaml.safe_dump(listed))
    document = manifests.kustomization(site, namespace, steps, os.path.relpath(base, folder))
    for patch in document["patches"]:
        patch["patch"] = patch["patch"].replace(HOOK, "")  # found by admission, not written by the user
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder


def _stripped(path: Path) -> Iterator[Json]:
    for one in yaml.safe_load_all(path.read_text()):
        template = one.get("spec", {}).get("template")
        if template is not None:
            labels = template["metadata"]["labels"]
            labels[LABEL] = ROLES[labels["app"]]
            for field in ADDED:
                template["spec"].pop(field, None)
            for container in template["spec"]["containers"]:
                container.pop("volumeMounts")
        yield one
