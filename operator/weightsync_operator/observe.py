"""From raw JSON of the API to small frozen records. Nobody else reads a pod's fields. Pure.

Whole pods are some 10 KiB each and are dropped right here: 10,000 records take about as much as 500 pods.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from weightsync import names
from weightsync.announcement import Announcement
from weightsync.api.v1alpha1.status import WeightSyncStatus
from weightsync.api.v1alpha1.weightsync import WeightSyncSpec
from weightsync.bounds import MOST_RANKS
from weightsync.errors import InputError
from weightsync.records import first_problem
from weightsync.report import Report
from weightsync_operator.planning.facts import UNREADABLE
from weightsync_operator.planning.grouping.workloads import LWS
from weightsync_operator.planning.mapping import Place
from weightsync_operator.planning.ownership import Claim
from weightsync_operator.planning.pods import Pod

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """A WeightSync as it was seen. spec is None where it cannot be read, and ``problem`` says why."""

    namespace: str
    name: str
    uid: str
    created: str
    generation: int
    resource_version: str
    deleting: bool
    status: WeightSyncStatus
    spec: WeightSyncSpec | None = None
    problem: str = ""

    @property
    def key(self) -> str:
        """namespace/name, for plans and messages."""
        return f"{self.namespace}/{self.name}"

    @property
    def claim(self) -> Claim | None:
        """What it asks for; None while it cannot be read.

        Until it is gone its pods are its own, as its agents see it too: two plans for one engine would be in force.
        """
        if self.spec is None:
            return None
        trainer, rollout = self.spec.trainer.selector, self.spec.rollout.selector
        return Claim(self.created, self.name, self.uid, trainer, rollout)


@dataclass(frozen=True, slots=True)
class SliceSeen:
    """That a slice exists, and whose it is; its content is in its name."""

    namespace: str
    name: str
    owner: str


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """Where a node is: the values of its topology labels."""

    name: str
    place: Place


def version(raw: Raw) -> int:
    """The resource version as a number, which orders what was seen of one kind of object."""
    text = raw["metadata"].get("resourceVersion", "")
    if not text.isdigit():
        raise InputError(f"resource version {text!r} is no number: this API server is not conformant")
    return int(text)


def pod(raw: Raw) -> Pod:
    """A pod's record. An annotation that cannot be read is a problem that conditions name, no error here."""
    meta, status = raw["metadata"], raw.get("status", {})
    annotations = meta.get("annotations") or {}
    size, problem = _size(annotations)
    announcement = None
    if names.ANNOUNCEMENT in annotations:
        try:
            announcement = Announcement.read(annotations[names.ANNOUNCEMENT], f"annotation {names.ANNOUNCEMENT}")
        except InputError as error:
            problem = str(error)
    phase = status.get("phase", "")
    gone = "Terminating" if "deletionTimestamp" in meta else phase if phase in ("Failed", "Succeeded") else ""
    return Pod(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        created=meta.get("creationTimestamp", ""),
        labels=meta.get("labels") or {},
        gone=gone,
        announcement=announcement,
        problem=problem,
        report=_report(annotations.get(names.REPORT)),
        size=size,
        node=raw.get("spec", {}).get("nodeName", ""),
        gated=_gated(raw),
    )


def _size(annotations: Mapping[str, str]) -> tuple[int, str]:
    """Of how many pods the engine is, and why that cannot be read. What the user wrote comes before the workload."""
    for key in (names.ENGINE_PODS, f"{LWS}/size"):
        text = annotations.get(key, "")
        # Not a digit more: Python refuses to make a number of thousands.
        if text.isdecimal() and len(text) <= len(str(MOST_RANKS)) and 0 < int(text) <= MOST_RANKS:
            return int(text), ""
        if text:
            return 0, f"annotation {key}: {text[:64]!r} is no number of pods: write how many are one engine"
    return 0, ""


def _gated(raw: Raw) -> bool:
    """Whether the pod waits for nothing but our gate: then what waits for the pod to be Ready waits for us."""
    truth = {c["type"]: c["status"] for c in raw.get("status", {}).get("conditions") or []}
    gates = {gate["conditionType"] for gate in raw.get("spec", {}).get("readinessGates") or []}
    return names.GATE in gates and truth.get(names.GATE) != "True" and truth.get("ContainersReady") == "True"


def _report(text: str | None) -> Report | None:
    if text is None:
        return None
    try:
        return Report.read(text, f"annotation {names.REPORT}")
    except InputError as error:
        # Said where reports are shown.
        return Report(term=UNREADABLE, error=str(error)[:1024], error_reason="ReportUnreadable")


def weightsync(raw: Raw) -> Seen:
    """A WeightSync's record."""
    meta = raw["metadata"]
    spec, problem = None, ""
    try:
        spec = WeightSyncSpec.model_validate(raw.get("spec"))
    except ValidationError as error:
        problem = f"spec.{first_problem(error)}"
    try:
        status = WeightSyncStatus.model_validate(raw.get("status") or {})
    except ValidationError:
        # Written by another version of the operator: start from nothing, the next apply replaces it.
        status = WeightSyncStatus()
    return Seen(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        created=meta.get("creationTimestamp", ""),
        generation=meta.get("generation", 0),
        resource_version=meta["resourceVersion"],
        deleting="deletionTimestamp" in meta,
        status=status,
        spec=spec,
        problem=problem,
    )


def node(raw: Raw, labels: tuple[str, ...]) -> NodeSeen:
    """A node's record. labels: those of the topology, the nearest first."""
    meta = raw["metadata"]
    there = meta.get("labels") or {}
    return NodeSeen(meta["name"], tuple(there.get(label, "") for label in labels))


def slice_of(raw: Raw) -> SliceSeen:
    """A slice's record; metadata suffices."""
    meta = raw["metadata"]
    owner = next((ref["uid"] for ref in meta.get("ownerReferences") or [] if ref["kind"] == names.KIND), "")
    return SliceSeen(meta["namespace"], meta["name"], owner)
