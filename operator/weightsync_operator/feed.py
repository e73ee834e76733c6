"""From what was seen to who is woken: records go to the store, concerned WeightSyncs to their tasks."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import structlog

from weightsync import names
from weightsync_operator import observe
from weightsync_operator.kube import paths
from weightsync_operator.kube.client import METADATA_ONLY, Kube
from weightsync_operator.kube.errors import Forbidden, Rewound
from weightsync_operator.kube.lists import Listed, everything
from weightsync_operator.observe import NodeSeen, Seen, SliceSeen
from weightsync_operator.planning.pods import Pod
from weightsync_operator.relists import Relists
from weightsync_operator.shelf import Change
from weightsync_operator.store import Store

log = structlog.get_logger(__name__)

Raw = dict[str, Any]


class _Lists(NamedTuple):
    """What was listed of one namespace, or of all."""

    space: str
    syncs: Listed[Seen]
    slices: Listed[SliceSeen]
    pods: Listed[Pod]


class Feed:
    """wake: a WeightSync's pass is due; gone: it was deleted; missed: kopf may not have told of all that vanished."""

    def __init__(
        self,
        store: Store,
        wake: Callable[[str], None],
        gone: Callable[[Seen], None],
        topology_labels: tuple[str, ...] = (),
        *,
        missed: Callable[[str], None] = lambda _: None,
        spaced: bool = False,
    ) -> None:
        self._store = store
        self._labels = topology_labels
        self._wake = wake
        self._gone = gone
        self._missed = missed
        self._relists = Relists(spaced=spaced)
        self._listed_at = 0

    def pod(self, raw: Raw, *, deleted: bool) -> None:
        """A pod was seen."""
        uid, version = raw["metadata"]["uid"], observe.version(raw)
        shelf = self._store.pods
        change = shelf.drop(uid, version) if deleted else shelf.put(uid, version, self._pod(raw))
        if change is not None:
            self._pods([change])

    def weightsync(self, raw: Raw, *, deleted: bool) -> None:
        """A WeightSync was seen."""
        uid, version = raw["metadata"]["uid"], observe.version(raw)
        shelf = self._store.syncs
        change = shelf.drop(uid, version) if deleted else shelf.put(uid, version, observe.weightsync(raw))
        if change is not None:
            self._syncs([change])
        if raw["metadata"].get("namespace", "") in self._store.closed:  # it may be listed again
            self._missed(names.PLURAL)

    def slice_of(self, raw: Raw, *, deleted: bool) -> None:
        """A slice was seen."""
        uid, version = raw["metadata"]["uid"], observe.version(raw)
        shelf = self._store.slices
        change = shelf.drop(uid, version) if deleted else shelf.put(uid, version, observe.slice_of(raw))
        if change is not None:
            self._slices([change])

    def node(self, raw: Raw, *, deleted: bool) -> None:
        """A node was seen."""
        uid, version = raw["metadata"]["uid"], observe.version(raw)
        shelf = self._store.nodes
        change = shelf.drop(uid, version) if deleted else shelf.put(uid, version, self._node(raw))
        if change is not None:
            self._nodes([change])

    def listed(self, kind: str, raw: Raw) -> None:
        """What was seen was part of a list."""
        meta = raw["metadata"]
        if self._relists.listed(kind, meta.get("namespace", ""), meta["uid"]):
            self._missed(kind)

    async def resync(self, kube: Kube, namespaces: tuple[str, ...], pod_selector: str) -> dict[str, Forbidden]:
        """List everything anew: the first time, and against events that a broken watch lost.

        Returns the namespaces that may not be listed, each with why: what was known of them stays, and nothing is
        planned there until it may. Of several namespaces one must not stop the others. Raises where none is left, and
        Rewound where only a start from nothing helps.
        """
        lists: list[_Lists] = []
        closed: dict[str, Forbidden] = {}
        for space in namespaces or ("",):
            try:
                lists.append(await self._list(kube, space, pod_selector))
            except Forbidden as error:
                closed[space] = error
        if not lists:
            self._store.closed = frozenset(closed)
            raise next(iter(closed.values()))
        self._only_forward(lists[-1].pods[0])
        node_changes = await self._places(kube)
        opened, self._store.closed = self._store.closed - closed.keys(), frozenset(closed)
        # All into the store before anyone is woken.
        changes = [self._replace(each) for each in lists]
        if not self._store.synced:
            self._store.synced = True
            self._wake_all(seen.uid for seen in self._store.syncs)
            return closed
        for syncs, slices, pods in changes:
            self._syncs(syncs)
            self._slices(slices)
            self._pods(pods)
        self._nodes(node_changes)
        self._wake_all(seen.uid for seen in self._store.syncs if seen.namespace in opened)
        return closed

    async def _places(self, kube: Kube) -> list[Change[NodeSeen]]:
        if not self._labels:
            return []
        try:
            return self._store.nodes.replace(*await everything(kube, paths.nodes(), self._node, accept=METADATA_ONLY))
        except Forbidden as error:
            # Nearness decides among equals alone: without it every engine is fed all the same.
            log.warning("nodes may not be listed: where pods are counts for nothing", error=str(error))
            return []

    def _only_forward(self, listed_at: int) -> None:
        """Older is ignored everywhere, by the records here and by kopf's watches: after a restore, all that comes."""
        if listed_at < self._listed_at:
            raise Rewound(
                f"pods were listed as of version {self._listed_at} and are now as of {listed_at}: the API server's "
                "storage was restored from a backup; starting from nothing"
            )
        self._listed_at = listed_at

    async def _list(self, kube: Kube, space: str, pod_selector: str) -> "_Lists":
        return _Lists(
            space,
            await everything(kube, paths.weightsyncs(space), observe.weightsync),
            await everything(kube, paths.slices(space), observe.slice_of, accept=METADATA_ONLY),
            await everything(kube, paths.pods(space), self._pod, selector=pod_selector),
        )

    def _replace(self, lists: "_Lists") -> tuple[list[Change[Seen]], list[Change[SliceSeen]], list[Change[Pod]]]:
        def within(one: Seen | SliceSeen | Pod) -> bool:
            return not lists.space or one.namespace == lists.space

        return (
            self._store.syncs.replace(*lists.syncs, within),
            self._store.slices.replace(*lists.slices, within),
            self._store.pods.replace(*lists.pods, within),
        )

    def _pods(self, changes: Iterable[Change[Pod]]) -> None:
        self._wake_all(self._store.concerned_by_pods(changes))

    def _pod(self, raw: Raw) -> Pod:
        meta = raw["metadata"]
        known = self._store.pods.at(meta["uid"], observe.version(raw))
        return observe.pod(raw) if known is None else known

    def _node(self, raw: Raw) -> NodeSeen:
        return observe.node(raw, self._labels)

    def _nodes(self, changes: Iterable[Change[NodeSeen]]) -> None:
        self._wake_all(self._store.concerned_by_nodes(changes))

    def _slices(self, changes: Iterable[Change[SliceSeen]]) -> None:
        self._wake_all(self._store.concerned_by_slices(changes))

    def _syncs(self, changes: Iterable[Change[Seen]]) -> None:
        changes = list(changes)
        for change in changes:
            if change.new is None and change.old is not None:
                self._gone(change.old)
        self._wake_all(self._store.concerned_by_syncs(changes))

    def _wake_all(self, uids: Iterable[str]) -> None:
        for uid in uids:
            if self._store.sync(uid) is not None:
                self._wake(uid)
