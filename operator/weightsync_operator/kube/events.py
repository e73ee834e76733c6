"""Kubernetes Events about a WeightSync; written only after the API has accepted what they tell."""

from weightsync import names
from weightsync_operator.kube import paths
from weightsync_operator.kube.client import Json, Kube
from weightsync_operator.observe import Seen
from weightsync_operator.planning.notices import Notice
from weightsync_operator.planning.series import Again

NOTE_LIMIT = 1024  # bytes, unlike the limits of a status
CONTROLLER = f"{names.GROUP}/operator"


def body(seen: Seen, notice: Notice, now: str, instance: str) -> Json:
    """now: RFC 3339 with microseconds; instance: which operator says so."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{seen.name}-", "namespace": seen.namespace},
        "eventTime": now,
        "type": notice.type,
        "reason": notice.reason,
        "action": notice.action,
        "note": notice.note.encode()[:NOTE_LIMIT].decode(errors="ignore"),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "regarding": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": seen.name,
            "namespace": seen.namespace,
            "uid": seen.uid,
        },
    }


async def post(kube: Kube, seen: Seen, notice: Notice, now: str, instance: str) -> str:
    """Write one. Returns its name."""
    made = await kube.create(paths.events(seen.namespace), body(seen, notice, now, instance))
    return str(made["metadata"]["name"])


async def count(kube: Kube, seen: Seen, again: Again, now: str) -> None:
    """Make a series of one that is there, or raise its count; raises NotFound where it was removed meanwhile."""
    series = {"series": {"count": again.count, "lastObservedTime": now}}
    await kube.merge(paths.event(seen.namespace, again.event), series)
