"""kopf's decorators around bodies of one call. on.event only: it writes nothing to the objects it sees.

Every other kind of handler leaves a finalizer or an annotation behind, and a finalizer keeps a WeightSync from being
deleted once the operator is uninstalled.
"""

import itertools
from collections.abc import Iterator
from typing import Any, Protocol

import kopf

from weightsync import names
from weightsync_operator.kube.client import Kube
from weightsync_operator.settings import Settings


class _Take(Protocol):
    def __call__(self, raw: dict[str, Any], *, deleted: bool) -> None: ...


class Sink(Protocol):
    """Where events go: synchronous, and quick."""

    def pod(self, raw: dict[str, Any], *, deleted: bool) -> None:
        """A pod was seen."""

    def weightsync(self, raw: dict[str, Any], *, deleted: bool) -> None:
        """A WeightSync was seen."""

    def slice_of(self, raw: dict[str, Any], *, deleted: bool) -> None:
        """A slice was seen."""

    def node(self, raw: dict[str, Any], *, deleted: bool) -> None:
        """A node was seen."""

    def listed(self, kind: str, raw: dict[str, Any]) -> None:
        """What was seen was part of a list: kopf's first one, or one in place of a watch that could not go on."""


def register(sink: Sink, kube: Kube, *, nodes: bool = False) -> kopf.OperatorRegistry:
    """The registry of one operator. nodes: watch them too."""
    registry = kopf.OperatorRegistry()
    group, version = names.API_VERSION.split("/")

    def told(kind: str, take: _Take, event: Any) -> None:
        take(event["object"], deleted=event["type"] == "DELETED")
        if event["type"] is None:
            sink.listed(kind, event["object"])

    # Handlers return None: anything else would be written into the object's status.
    async def pod(event: Any, **_: Any) -> None:
        told("pods", sink.pod, event)

    async def weightsync(event: Any, **_: Any) -> None:
        told(names.PLURAL, sink.weightsync, event)

    async def slice_of(event: Any, **_: Any) -> None:
        told(names.SLICE_PLURAL, sink.slice_of, event)

    async def node(event: Any, **_: Any) -> None:
        told("nodes", sink.node, event)

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await kube.kopf_login()

    kopf.on.event("", "v1", "pods", registry=registry)(pod)
    kopf.on.event(group, version, names.PLURAL, registry=registry)(weightsync)
    kopf.on.event(group, version, names.SLICE_PLURAL, registry=registry)(slice_of)
    if nodes:
        kopf.on.event("", "v1", "nodes", registry=registry)(node)
    kopf.on.login(registry=registry)(login)
    return registry


class Delays:
    """Seconds between tries of a list or a watch, without end.

    After the last of its own kopf ends, and the operator with it: one namespace whose role is gone (it was deleted),
    or an API server that is away for a minute, would end the service of all others again and again.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1, 1, 2, 3, 5, 8, 13, 21), itertools.repeat(30))


def kopf_settings(settings: Settings) -> kopf.OperatorSettings:
    """kopf as a source of watch events and nothing more."""
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.posting.loggers = False
    found.scanning.disabled = True
    found.networking.request_timeout = 30
    found.networking.error_backoffs = Delays()
    found.watching.server_timeout = 300
    found.watching.inactivity_timeout = 70
    found.process.ultimate_exiting_timeout = 30
    # Unused with on.event, but what is never written must not be named kopf's either.
    found.persistence.finalizer = f"{names.GROUP}/never"
    found.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    if settings.pod_selector:
        found.watching.label_selectors["pods"] = settings.pod_selector
    return found
