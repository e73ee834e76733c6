"""The two CustomResourceDefinitions, as plain data made from the models. Pure."""

from typing import Any

from weightsync import names
from weightsync.api.v1alpha1.schema import Schema, structural
from weightsync.api.v1alpha1.slice import SliceSpec
from weightsync.api.v1alpha1.status import WeightSyncStatus
from weightsync.api.v1alpha1.weightsync import NAME_LIMIT, WeightSyncSpec, rules

VERSION = names.API_VERSION.split("/")[1]
# Not the singular name: kubectl takes a category for the kinds in it, and `get weightsync NAME` for two kinds.
CATEGORY = "weightsync-all"


def weightsync_crd() -> dict[str, Any]:
    """The CRD of WeightSync."""
    schema = _root(
        "Keeps the engines of a namespace on the weights that its trainer publishes.",
        {
            "spec": structural(WeightSyncSpec, defaults=True),
            "status": structural(WeightSyncStatus, defaults=False),
        },
    )
    schema |= rules(
        (
            f"size(self.metadata.name) <= {NAME_LIMIT}",
            f"the name is used as a label's value: shorten it to {NAME_LIMIT} characters",
        )
    )
    ready = '.status.conditions[?(@.type=="Ready")]'
    columns = [
        _column("Ready", "string", f"{ready}.status", "Whether a version that is published now reaches the engines."),
        _column("Reason", "string", f"{ready}.reason", "Why it does or does not."),
        _column("Version", "string", ".status.version", "The newest version that was decided."),
        _column("Engines", "integer", ".status.counts.matched", "Engines that the rollout selector matches."),
        _column("Current", "integer", ".status.counts.current", "Engines that serve the newest version."),
        _column("Behind", "integer", ".status.counts.behind", "Engines that serve an older version.", wide=True),
        _column("Failed", "integer", ".status.counts.failed", "Engines that could not be served.", wide=True),
        _column("Label", "string", ".status.label", "The trainer's own label of the version.", wide=True),
        _column("Term", "integer", ".status.head.term", "When its coordinator began, in ms since 1970.", wide=True),
        _column("Age", "date", ".metadata.creationTimestamp", "When it was created."),
    ]
    version = {"additionalPrinterColumns": columns, "subresources": {"status": {}}}
    return _crd(names.KIND, names.PLURAL, "ws", schema, version)


def slice_crd() -> dict[str, Any]:
    """The CRD of WeightSyncSlice."""
    spec = structural(SliceSpec, defaults=False)
    schema = _root("A part of a WeightSync's plan, written by the operator and read by agents.", {"spec": spec})
    owner = f".metadata.labels.{names.OWNER_LABEL.replace('.', chr(92) + '.')}"
    columns = [
        _column("WeightSync", "string", owner, "Whose plan it belongs to."),
        _column("Age", "date", ".metadata.creationTimestamp", "When it was created."),
    ]
    return _crd(names.SLICE_KIND, names.SLICE_PLURAL, "wss", schema, {"additionalPrinterColumns": columns})


def _root(description: str, parts: dict[str, Schema]) -> Schema:
    base = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    return {"type": "object", "description": description, "required": ["spec"], "properties": base | parts}


def _column(name: str, kind: str, path: str, description: str, *, wide: bool = False) -> dict[str, Any]:
    priority = {"priority": 1} if wide else {}
    return {"name": name, "type": kind, "jsonPath": path, "description": description} | priority


def _crd(kind: str, plural: str, short: str, schema: Schema, version: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": [CATEGORY],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
                | version
            ],
        },
    }
