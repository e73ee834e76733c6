"""The status of a WeightSync, by server-side apply under the operator's field manager."""

from weightsync import names
from weightsync.api.v1alpha1.status import WeightSyncStatus
from weightsync_operator.kube import paths
from weightsync_operator.kube.client import Json, Kube
from weightsync_operator.observe import Seen


def body(seen: Seen, status: WeightSyncStatus) -> Json:
    """The applied object.

    uid and resourceVersion make it conditional on what the pass saw: an operator that lost its Lease and goes on
    for a moment cannot put an older head over a newer one, nor over a WeightSync made anew under the same name.
    """
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": seen.name,
            "namespace": seen.namespace,
            "uid": seen.uid,
            "resourceVersion": seen.resource_version,
        },
        "status": status.model_dump(mode="json", exclude_none=True),
    }


async def apply(kube: Kube, seen: Seen, status: WeightSyncStatus) -> Json:
    """The object afterwards. Raises Conflict where it changed since it was seen, NotFound where it is gone."""
    path = f"{paths.weightsync(seen.namespace, seen.name)}/status"
    return await kube.apply(path, body(seen, status), names.MANAGER_OPERATOR)
