"""Paths of the API's objects. Pure."""

from weightsync import names


def pods(namespace: str = "") -> str:
    """The pods of a namespace, or of all."""
    return f"/api/v1{_in(namespace)}/pods"


def nodes() -> str:
    """The nodes."""
    return "/api/v1/nodes"


def statefulset(namespace: str, name: str) -> str:
    """One StatefulSet."""
    return f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}"


def weightsyncs(namespace: str = "") -> str:
    """The WeightSyncs of a namespace, or of all."""
    return f"/apis/{names.API_VERSION}{_in(namespace)}/{names.PLURAL}"


def weightsync(namespace: str, name: str) -> str:
    """One WeightSync."""
    return f"{weightsyncs(namespace)}/{name}"


def slices(namespace: str = "") -> str:
    """The slices of a namespace, or of all."""
    return f"/apis/{names.API_VERSION}{_in(namespace)}/{names.SLICE_PLURAL}"


def slice_of(namespace: str, name: str) -> str:
    """One slice."""
    return f"{slices(namespace)}/{name}"


def events(namespace: str) -> str:
    """The events of a namespace."""
    return f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"


def event(namespace: str, name: str) -> str:
    """One event."""
    return f"{events(namespace)}/{name}"


def leases(namespace: str) -> str:
    """The Leases of a namespace."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def lease(namespace: str, name: str) -> str:
    """One Lease."""
    return f"{leases(namespace)}/{name}"


def group() -> str:
    """The resources of our API group, once it is served."""
    return f"/apis/{names.API_VERSION}"


def _in(namespace: str) -> str:
    return f"/namespaces/{namespace}" if namespace else ""
