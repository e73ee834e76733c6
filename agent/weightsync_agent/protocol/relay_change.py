"""The tree of the last sync, changed as little as engines have: who left is replaced, who came is added. Pure.

- An engine that left, or is suspected, gives its place to one that came, else to the deepest leaf of the same zone:
  only that one and the children of the place move.
- What has no place then hangs below the highest engine of its zone that has a free one, else below any.

Whether the result is as good as a tree made anew is the caller's question.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

Tree = Mapping[str, str | None]
Rank = tuple[bool, bool, int, str]


def follow(
    previous: Tree, zone: Mapping[str, str], fanout: int, sources: frozenset[str], suspects: frozenset[str]
) -> dict[str, str | None] | None:
    """The changed tree; None where more has changed than stayed, or no place is left.

    zone: of each engine that takes part now. sources: the sources' zones; without any, roots are near.
    """
    if sum(key in zone for key in previous) * 2 < len(zone):
        return None
    change = _Change(previous, zone, fanout, sources, suspects)
    change.fill_places()
    return change.made if change.hang_rest() else None


def upwards(tree: Tree, node: str) -> list[str]:
    """The node, its parent, and so on, as far as the tree knows."""
    found = [node]
    while (above := tree.get(found[-1])) is not None:
        found.append(above)
    return found


class _Change:
    def __init__(
        self,
        previous: Tree,
        zone: Mapping[str, str],
        fanout: int,
        sources: frozenset[str],
        suspects: frozenset[str],
    ) -> None:
        self._previous = previous
        self._zone = zone
        self._fanout = fanout
        self._sources = sources
        self._suspects = suspects
        self._below: dict[str | None, list[str]] = defaultdict(list)
        for key in sorted(previous):
            self._below[previous[key]].append(key)
        self._depth = self._depths()
        left = [k for k in previous if k not in zone or (k in suspects and self._below[k])]
        self._left = sorted(left, key=lambda k: (self._depth[k], k))
        # Edges of those who stay; who has none is hung at the end.
        self.made: dict[str, str | None] = {
            key: parent for key, parent in previous.items() if key in zone and not {key, parent} & set(self._left)
        }
        self._new = sorted(key for key in zone if key not in previous and key not in suspects)

    def _depths(self) -> dict[str, int]:
        found: dict[str, int] = {}
        level, number = self._below[None], 1
        while level:
            found.update(dict.fromkeys(level, number))
            level, number = [child for key in level for child in self._below[key]], number + 1
        return found

    def fill_places(self) -> None:
        """Each place that was left and has children gets another engine."""
        taken: dict[str, str] = {}
        for key in self._left:
            parent = self._previous[key]
            parent = taken.get(parent, parent) if parent is not None else None
            # One that has filled a place above is no orphan any more.
            orphans = [k for k in self._below[key] if k in self._zone and k not in self._left and k not in self.made]
            if parent in self._left or not orphans:
                continue
            filler = self._filler(self._zone[orphans[0]], upwards(self.made, parent) if parent is not None else ())
            if filler is None:
                continue
            taken[key] = filler
            self.made[filler] = parent
            for child in orphans:
                if child != filler:
                    self.made[child] = filler

    def _filler(self, zone: str, above: Collection[str]) -> str | None:
        """Who came into that zone, else its deepest leaf; nobody that the place is fed by."""
        new = next((key for key in self._new if self._zone[key] == zone), None)
        if new is not None:
            self._new.remove(new)
            return new
        inner = {parent for parent in self.made.values() if parent is not None}
        leaves = [
            key
            for key in self._zone
            if self._zone[key] == zone
            and key in self._depth
            and key not in inner
            and key not in above
            and key not in self._suspects
        ]
        return max(leaves, key=lambda key: (self._depth[key], key), default=None)

    def hang_rest(self) -> bool:
        """Whether everyone found a place."""
        for key in sorted(self._zone, key=lambda key: (key in self._suspects, key)):
            if key not in self.made and not self._hang(key):
                return False
        degree: dict[str | None, int] = defaultdict(int)
        for parent in self.made.values():
            degree[parent] += 1
        return max(degree.values(), default=0) <= self._fanout

    def _hang(self, key: str) -> bool:
        """Below the highest free place that is fed itself: never one of its own subtree."""
        below: dict[str | None, list[str]] = defaultdict(list)
        for child, parent in self.made.items():
            below[parent].append(child)
        ranks: list[tuple[Rank, str | None]] = []
        level: list[str | None] = [None]
        number = 0
        while level:
            ranks += [(self._rank(key, above, number), above) for above in level if len(below[above]) < self._fanout]
            level, number = [child for above in level for child in below[above]], number + 1
        if not ranks:
            return False
        self.made[key] = min(ranks, key=lambda pair: pair[0])[1]
        return True

    def _rank(self, key: str, above: str | None, level: int) -> Rank:
        if above is None:
            return False, bool(self._sources) and self._zone[key] not in self._sources, level, ""
        return above in self._suspects, self._zone[above] != self._zone[key], level, above
