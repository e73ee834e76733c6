"""The CRDs: as plain manifests in `crds/`, and as templates of the chart."""

from typing import Any

import yaml

from weightsync.api.v1alpha1.crd import slice_crd, weightsync_crd

HEADER = (
    "# Generated from sdk/weightsync/api/v1alpha1 by `python -m tools.generate`: change the models, not this file.\n"
)
# Uninstalling the chart must not delete every WeightSync of the cluster.
KEEP = {"helm.sh/resource-policy": "keep"}


def manifests() -> dict[str, str]:
    """The plain manifests and the chart's copies."""
    files = {}
    for crd in (weightsync_crd(), slice_crd()):
        name = f"{crd['metadata']['name']}.yaml"
        files[f"crds/{name}"] = HEADER + dump(crd)
        kept = crd | {"metadata": {"annotations": KEEP} | crd["metadata"]}
        files[f"charts/weightsync/templates/crds/{name}"] = (
            "{{- if .Values.crds.install }}\n" + HEADER + dump(kept) + "{{- end }}\n"
        )
    return files


class _Dumper(yaml.SafeDumper):
    """Writes equal parts out: anchors would make the manifests unreadable."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(value: dict[str, Any]) -> str:
    """YAML with keys in the order in which they were made."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110)
