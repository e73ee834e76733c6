"""Who passes a shard on to whom: a tree of engines below the sources. Pure; standard library only. Rules:

- the sources feed at most ``fanout`` roots, every engine feeds at most ``fanout`` others, each engine is fed once;
- no tree of that fanout is flatter, as long as every zone hangs below one of its engines (else below a source in that
  zone): a zone's bytes cross into it once;
- engines that failed last time (suspects) feed nobody while others can, so that nobody waits for them;
- few edges move between two syncs: relay_change.py keeps those of the last one;
- an engine whose parent stalls turns to an engine outside the stalled one's subtree; there it closes no circle, and
  what was not disturbed stays as it is.

A zone is the first value of ``near``; engines without one make a zone of their own.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from weightsync_agent.protocol import relay_change
from weightsync_agent.protocol.relay_change import upwards

Tree = Mapping[str, str | None]  # an engine's key -> its parent's; None: a root, fed by the sources

BARRED = 1 << 30  # levels: more than any tree has


@dataclass(frozen=True)
class Place:
    """One engine that a shard goes to. near: values of topology labels, the widest first; () where unknown."""

    key: str
    near: tuple[str, ...] = ()

    @property
    def zone(self) -> str:
        """What is entered once."""
        return self.near[0] if self.near else ""


def tree(
    targets: Sequence[Place],
    fanout: int,
    *,
    sources: Sequence[tuple[str, ...]] = (),
    suspects: Collection[str] = (),
    previous: Tree | None = None,
) -> dict[str, str | None]:
    """The parent of each target, whatever their order.

    fanout 0, or no more targets than that: every one a root. sources: ``near`` of the sources' pods. previous: the
    tree of the last sync, whose edges are kept where that costs neither depth nor a crossing.
    """
    if fanout <= 0 or len(targets) <= fanout:
        return {place.key: None for place in targets}
    zones = frozenset(near[0] for near in sources if near)
    fresh = _Growing(targets, fanout, zones, frozenset(suspects)).grow()
    if previous is None:
        return fresh
    where = {place.key: place.zone for place in targets}
    kept = relay_change.follow(previous, where, fanout, zones, frozenset(suspects))
    cheap = kept is not None and (
        depth(kept) <= depth(fresh) and crossings(kept, where, zones) <= crossings(fresh, where, zones)
    )
    return kept if kept is not None and cheap else fresh


def parents(tree: Tree, node: str, *, gone: Collection[str] = ()) -> list[str]:
    """Where ``node`` may turn when its parent stalls, best first; []: to the sources alone.

    The first of the stalled one's children takes its place below the grandparent; the others get free places, near
    ones first, each another one. Whoever is gone, or below one that is, cannot help: it waits for bytes itself.
    """
    parent = tree[node]
    away = {*gone, *([parent] if parent is not None else [])}
    waiting = set(away)
    degree: dict[str, int] = defaultdict(int)
    for key, above in tree.items():
        if any(k in away for k in upwards(tree, key)):
            waiting.add(key)
        elif above is not None:
            degree[above] += 1
    able = [key for key in tree if key not in waiting and key != node and node not in upwards(tree, key)]
    lineage = upwards(tree, node)
    steps = {key: level for level, key in enumerate(lineage)}
    able.sort(key=lambda key: (*_distance(tree, steps, key), key))
    if parent is None:
        return able
    fanout = max(len(children(tree, key)) for key in tree)
    above = next((key for key in lineage[2:] if key in able), None)
    free = [key for key in able if key != above for _ in range(fanout - degree[key])]
    turn = [key for key in children(tree, parent) if key not in away].index(node) if node not in away else 0
    if above is not None:
        first, rest = ([above] if turn == 0 else []), max(0, turn - 1)
    else:
        first, rest = [], turn
    shift = rest % len(free) if free else 0
    return list(dict.fromkeys([*first, *free[shift:], *free[:shift], *able]))


def mended(tree: Tree, gone: Collection[str]) -> dict[str, str | None]:
    """The tree after members stalled or were lost, each of their children with the first of its parents().

    The stalled ones stay where they are, as leaves: they may wake up.
    """
    made = dict(tree)
    for node, parent in tree.items():
        if parent in gone and node not in gone:
            made[node] = next(iter(parents(tree, node, gone=gone)), None)
    return made


def children(tree: Tree, node: str) -> list[str]:
    """Whom it feeds, in a stable order."""
    return sorted(key for key, parent in tree.items() if parent == node)


def depth(tree: Tree) -> int:
    """How many hops the bytes make to the engine that is farthest from the sources."""
    return max((len(upwards(tree, key)) for key in tree), default=0)


def crossings(tree: Tree, zone: Mapping[str, str], sources: Collection[str] = ()) -> int:
    """Edges that lead into another zone. sources: their zones; without any, roots are taken to be near."""
    within = {key for key, parent in tree.items() if parent is not None and zone[key] == zone[parent]}
    near = {key for key, parent in tree.items() if parent is None and (not sources or zone[key] in sources)}
    return len(tree) - len(within) - len(near)


def _distance(tree: Tree, steps: Mapping[str, int], key: str) -> tuple[int, int]:
    """How far up the nearest common ancestor is, and how far down from there; trees keep what is near together."""
    for down, above in enumerate(upwards(tree, key)):
        if above in steps:
            return steps[above], down
    return len(tree), len(upwards(tree, key))


class _Growing:
    """A tree grows level by level. A free place goes to the zone that would else get deepest."""

    def __init__(
        self, targets: Sequence[Place], fanout: int, sources: frozenset[str], suspects: frozenset[str]
    ) -> None:
        self._fanout = fanout
        self._sources = sources
        self._suspects = sorted((p for p in targets if p.key in suspects), key=lambda p: p.key)
        self._zones = {place.key: place.zone for place in targets}
        self._waiting: dict[str, list[Place]] = defaultdict(list)
        for place in sorted(targets, key=lambda p: (p.near, p.key)):
            if place.key not in suspects:
                self._waiting[place.zone].append(place)
        self._begun: set[str] = set()
        # Free places below engines of a zone: of the level that is being given out, and of the next.
        self._now: dict[str, int] = defaultdict(int)
        self._next: dict[str, int] = defaultdict(int)
        self._parents: dict[str, str | None] = {}

    def grow(self) -> dict[str, str | None]:
        """All of it."""
        level: list[Place | None] = [None]
        while any(self._waiting.values()):
            grown: list[Place] = []
            # Everyone's first child comes before anyone's second: what a link carries is shared evenly.
            for owner in [owner for _ in range(self._fanout) for owner in level]:
                place = self._fill(owner)
                if place is not None:
                    grown.append(place)
            level = [*grown]
            self._now, self._next = self._next, defaultdict(int)
        for place in self._suspects:
            self._hang(place)
        return self._parents

    def _fill(self, owner: Place | None) -> Place | None:
        if owner is not None:
            self._now[owner.zone] -= 1
        zone = self._neediest(owner)
        if zone is None:
            return None
        place = self._nearest(self._waiting[zone], owner.near if owner is not None else ())
        self._parents[place.key] = owner.key if owner is not None else None
        self._begun.add(zone)
        self._next[zone] += self._fanout
        return place

    def _neediest(self, owner: Place | None) -> str | None:
        """Zones that have not begun may begin anywhere; one that has grows below its own, or below sources in it.

        Those with sources begin first, below these: from another zone they would be entered for nothing.
        """
        best: tuple[bool, int, int, int, str] | None = None
        for zone, waiting in self._waiting.items():
            count = len(waiting)
            if not count:
                continue
            if zone not in self._begun:
                away = owner is not None or zone not in self._sources
                rank = (away, -self._levels(count, 1, 0), 0, -count, zone)
            elif self._at_home(zone, owner):
                rank = (True, -self._levels(count, self._now[zone], self._next[zone]), 1, -count, zone)
            else:
                continue
            best = rank if best is None else min(best, rank)
        return best[-1] if best is not None else None

    def _at_home(self, zone: str, owner: Place | None) -> bool:
        if owner is None:
            return not self._sources or zone in self._sources
        return zone == owner.zone

    def _levels(self, count: int, now: int, following: int) -> int:
        """How many levels so many engines fill, from the places on this level and further ones on the next."""
        levels, places = 0, now
        if not now and not following:
            return BARRED
        while count > 0:
            count -= places
            places = places * self._fanout + (following if levels == 0 else 0)
            levels += 1
        return levels

    @staticmethod
    def _nearest(waiting: list[Place], near: tuple[str, ...]) -> Place:
        """Take out the one that has most labels in common: in sorted order it stands beside where ``near`` would."""
        index = bisect_left(waiting, near, key=lambda place: place.near)
        around = [i for i in (index, index - 1) if 0 <= i < len(waiting)]
        return waiting.pop(max(around, key=lambda i: _common(waiting[i].near, near)))

    def _hang(self, place: Place) -> None:
        """A suspect: below whoever is no suspect and has a free place, in its zone where one has."""
        degree: dict[str | None, int] = defaultdict(int)
        for parent in self._parents.values():
            degree[parent] += 1
        suspects = {suspect.key for suspect in self._suspects}
        free: list[str | None] = [key for key in (None, *self._parents) if degree[key] < self._fanout]

        def rank(key: str | None) -> tuple[bool, bool, int, str]:
            if key is None:
                return False, bool(self._sources) and place.zone not in self._sources, 0, ""
            return key in suspects, self._zones[key] != place.zone, len(upwards(self._parents, key)), key

        self._parents[place.key] = min(free, key=rank)


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many labels are alike before the first that differs."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
