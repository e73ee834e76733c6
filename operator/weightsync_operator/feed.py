"""From what was seen to who is woken: records go to the store, concerned WeightSyncs to their tasks."""

from collections.abc import Callable, Iterable
from typing import Any

from weightsync_operator import observe
from weightsync_operator.kube import lists, paths
from weightsync_operator.kube.client import METADATA_ONLY, Kube
from weightsync_operator.observe import NodeSeen, Seen, SliceSeen
from weightsync_operator.planning.pods import Pod
from weightsync_operator.relists import Relists
from weightsync_operator.shelf import Change
from weightsync_operator.store import Store

Raw = dict[str, Any]


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

    async def resync(self, kube: Kube, namespaces: tuple[str, ...], pod_selector: str) -> None:
        """List everything anew: the first time, and against events that a broken watch lost."""
        spaces = namespaces or ("",)
        syncs = await lists.everything(kube, map(paths.weightsyncs, spaces), observe.weightsync)
        slices = await lists.everything(kube, map(paths.slices, spaces), observe.slice_of, accept=METADATA_ONLY)
        pods = await lists.everything(kube, map(paths.pods, spaces), self._pod, selector=pod_selector)
        node_changes: list[Change[NodeSeen]] = []
        if self._labels:
            nodes = await lists.everything(kube, [paths.nodes()], self._node, accept=METADATA_ONLY)
            node_changes = self._store.nodes.replace(*nodes)
        # All into the store before anyone is woken.
        sync_changes = self._store.syncs.replace(*syncs)
        slice_changes = self._store.slices.replace(*slices)
        pod_changes = self._store.pods.replace(*pods)
        if self._store.synced:
            self._syncs(sync_changes)
            self._slices(slice_changes)
            self._pods(pod_changes)
            self._nodes(node_changes)
            return
        self._store.synced = True
        self._wake_all(seen.uid for seen in self._store.syncs)

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
