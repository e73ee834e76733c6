"""What was seen of the cluster, and whom a change concerns. Memory only: no I/O.

Pods belong to WeightSyncs by selectors that differ per object, so all pods of the watched namespaces are kept, as
trimmed records (settings.pod_selector narrows the watch on the server). A change that no record shows, such as a
kubelet's heartbeat, wakes nobody.
"""

from collections.abc import Iterable

from weightsync_operator.observe import NodeSeen, Seen, SliceSeen
from weightsync_operator.planning.mapping import Place
from weightsync_operator.planning.pods import Pod
from weightsync_operator.shelf import Change, Shelf


class Store:
    """synced: the first whole lists are in; before, a plan would be made of half the pods. closed: namespaces that
    may not be listed, of which the same holds."""

    def __init__(self) -> None:
        self.pods = Shelf[Pod]()
        self.syncs = Shelf[Seen]()
        self.slices = Shelf[SliceSeen]()
        self.nodes = Shelf[NodeSeen]()
        self.synced = False
        self.closed: frozenset[str] = frozenset()

    def whole(self, namespace: str) -> bool:
        """Whether all that is there has been seen."""
        return self.synced and namespace not in self.closed

    def sync(self, uid: str) -> Seen | None:
        """The WeightSync with that uid."""
        return self.syncs.get(uid)

    def siblings(self, seen: Seen) -> list[Seen]:
        """The other WeightSyncs of its namespace."""
        return [other for other in self.syncs if other.namespace == seen.namespace and other.uid != seen.uid]

    def places(self) -> dict[str, Place]:
        """Where each node is, by its name."""
        return {node.name: node.place for node in self.nodes}

    def pods_of(self, namespace: str) -> list[Pod]:
        """All pods of a namespace."""
        return [pod for pod in self.pods if pod.namespace == namespace]

    def slices_of(self, seen: Seen) -> set[str]:
        """Names of the slices that the WeightSync owns."""
        return {part.name for part in self.slices if part.owner == seen.uid}

    def concerned_by_pods(self, changes: Iterable[Change[Pod]]) -> set[str]:
        """Uids of the WeightSyncs whose selectors match a pod before or after its change."""
        concerned: set[str] = set()
        claims = [(seen.namespace, claim) for seen in self.syncs if (claim := seen.claim) is not None]
        for change in changes:
            for pod in (change.old, change.new):
                if pod is not None:
                    concerned |= {c.uid for namespace, c in claims if namespace == pod.namespace and c.wants(pod)}
        return concerned

    def concerned_by_syncs(self, changes: Iterable[Change[Seen]]) -> set[str]:
        """A WeightSync that changed its claim concerns all of its namespace: ownership may have moved."""
        concerned: set[str] = set()
        for change in changes:
            known = [seen for seen in (change.old, change.new) if seen is not None]
            concerned |= {seen.uid for seen in known}
            if change.old is None or change.new is None or change.old.claim != change.new.claim:
                spaces = {seen.namespace for seen in known}
                concerned |= {seen.uid for seen in self.syncs if seen.namespace in spaces}
        return concerned

    def concerned_by_nodes(self, changes: Iterable[Change[NodeSeen]]) -> set[str]:
        """A node that moved concerns whoever has pods; routes that are there stay, so that little follows."""
        return {seen.uid for seen in self.syncs} if list(changes) else set()

    def concerned_by_slices(self, changes: Iterable[Change[SliceSeen]]) -> set[str]:
        """Uids of the owners."""
        return {seen.owner for change in changes for seen in (change.old, change.new) if seen and seen.owner}
