"""Slices: read, created, deleted. They are never changed."""

import structlog
from pydantic import ValidationError

from weightsync import names
from weightsync.api.v1alpha1.slice import read_spec
from weightsync.records import first_problem
from weightsync_operator.kube import paths
from weightsync_operator.kube.client import Json, Kube
from weightsync_operator.kube.errors import AlreadyExists, NotFound
from weightsync_operator.observe import Seen
from weightsync_operator.planning.slicing import Slice

log = structlog.get_logger(__name__)


def body(owner: Seen, part: Slice) -> Json:
    """The object. It goes with its owner by the garbage collector: nothing of ours must run for that."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.SLICE_KIND,
        "metadata": {
            "name": part.name,
            "namespace": owner.namespace,
            "labels": {names.OWNER_LABEL: owner.name},
            "ownerReferences": [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": names.KIND,
                    "name": owner.name,
                    "uid": owner.uid,
                    "controller": True,
                    # True would need the right to update finalizers, which the operator does not have.
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": {kind: items for kind, items in part.spec.model_dump(mode="json").items() if items},
    }


async def create(kube: Kube, owner: Seen, part: Slice) -> Json | None:
    """Create it; None where it was there: a name stands for its content."""
    try:
        return await kube.create(paths.slices(owner.namespace), body(owner, part))
    except AlreadyExists:
        return None


async def delete(kube: Kube, owner: Seen, name: str) -> bool:
    """Delete it; False where it was gone."""
    try:
        await kube.delete(paths.slice_of(owner.namespace, name))
    except NotFound:
        return False
    return True


async def read(kube: Kube, owner: Seen, name: str) -> Slice | None:
    """The slice, None where it is gone, or of a release whose slices cannot be read: both are planned anew."""
    try:
        raw = await kube.get(paths.slice_of(owner.namespace, name))
        return Slice(name, read_spec(raw["spec"]))
    except NotFound:
        return None
    except ValidationError as error:
        log.warning("a slice cannot be read", weightsync=owner.key, name=name, error=first_problem(error))
        return None
