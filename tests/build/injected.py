"""examples/kubernetes/injected as the demo lays its choices over the base: images, mounted packages, a namespace."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from tools.demo import manifests
from tools.demo.site import Site

EXAMPLE = Path("examples/kubernetes/injected")
ROLES = {"trainer": "trainer", "rollout": "engine"}  # app label -> what is injected
HOOK = "/dev/weightsync/python:"
# It is about what is synced, not about what is learnt: short steps, which leave the node to the pods that start.
LITTLE = ("--prompts", "2", "--samples", "2", "--probes", "2")


def write(folder: Path, root: Path, site: Site, namespace: str, steps: int) -> Path:
    """Write the kustomization for `kubectl apply -k`. Returns its folder."""
    document = manifests.kustomization(site, namespace, steps, os.path.relpath(root / EXAMPLE, folder))
    for patch in document["patches"]:
        changed = yaml.safe_load(patch["patch"].replace(HOOK, ""))  # put in by admission, not written by the user
        for container in changed["spec"]["template"]["spec"]["containers"]:
            if "args" in container:
                container["args"] += LITTLE
        patch["patch"] = yaml.safe_dump(changed)
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder
