"""Where the mapping is computed: which source rank writes which engine rank, stage by stage. Pure.

Within a stage, in this order:
1. A target keeps its source while both are there, unless that source carries more than its share.
2. A source that feeds nobody takes the next target: source i takes target i when all is new.
3. Else a target goes to a source that already serves its program (no further replica in that source's memory),
4. among those to the one with least to send, among equals to the nearest, among equally near ones to the first.

Shares: with t targets and n sources everyone feeds t // n or one more, so that no source's link is the slowest by
more than one replica. A new engine moves no other engine's routes: shares only grow.

A bound of memory comes before shares: a pod that has no room for a further replica gets no target of a program that
it does not serve yet, and a target that fits nowhere gets no route. Where one would, each program gets one replica in
each stage before evenness takes the room of a second.
"""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Values of a node's topology labels, the nearest label's first; "" where the node has none.
Place = tuple[str, ...]


class SourceKey(NamedTuple):
    """A trainer rank."""

    uid: str
    rank: int


class TargetKey(NamedTuple):
    """An engine rank: the pod and the rank within the engine."""

    uid: str
    rank: int


class Wanted(NamedTuple):
    """A target, the program of its replica, where it is, and the bytes of its replica's part in this stage."""

    key: TargetKey
    program: str
    place: Place = ()
    nbytes: int = 0


Routes = dict[TargetKey, SourceKey]


class Room:
    """What replicas still may take in each source's pod, over all its ranks and stages. Unknown: no bound."""

    def __init__(self, nbytes: Mapping[str, int]) -> None:
        self._left = {uid: room for uid, room in nbytes.items() if room}

    def fits(self, uid: str, nbytes: int) -> bool:
        """Whether one more replica fits."""
        return nbytes <= self._left.get(uid, nbytes)

    def take(self, uid: str, nbytes: int) -> None:
        """One more is held."""
        if uid in self._left:
            self._left[uid] -= nbytes


def map_stages(
    stages: Sequence[Sequence[SourceKey]],
    targets: Sequence[Wanted],
    previous: Mapping[int, Routes],
    places: Mapping[str, Place] | None = None,
    room: Mapping[str, int] | None = None,
) -> list[Routes]:
    """Of each stage one source for each target that fits. stages: the sources of each; all in a stable order.

    previous: by stage, and may name what is no longer there. places: of source pods, by uid. room: bytes in each, 0
    where it is not known. Raises ValueError for a stage without sources: the caller plans only where each has some.
    """
    if not all(stages):
        raise ValueError("a stage without sources cannot be mapped")
    routes = _mapped(stages, targets, previous, places or {}, Room(room or {}), cover=False)
    if all(len(of_stage) == len(targets) for of_stage in routes):
        return routes
    return _mapped(stages, targets, previous, places or {}, Room(room or {}), cover=True)


def _mapped(
    stages: Sequence[Sequence[SourceKey]],
    targets: Sequence[Wanted],
    previous: Mapping[int, Routes],
    places: Mapping[str, Place],
    room: Room,
    *,
    cover: bool,
) -> list[Routes]:
    made = [_Stage(sources, len(targets), places, room) for sources in stages]
    if cover:
        for number, stage in enumerate(made):
            stage.cover(targets, previous.get(number, {}))
    for number, stage in enumerate(made):
        stage.keep(targets, previous.get(number, {}))
        for target in targets:
            if target.key not in stage.routes:
                stage.add(target)
    return [stage.routes for stage in made]


class _Queue:
    """Sources, the one with least to send first, then the nearest to one place. Loads only rise: entries that are
    out of date are put right when they come up."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, int]] = []  # load, distance, source

    def first(self, stage: "_Stage", target: Wanted) -> int | None:
        """The first source that has room for the target."""
        full, found = [], None
        while self.heap:
            load, distance, source = self.heap[0]
            if load != stage.loads[source]:
                heapq.heapreplace(self.heap, (stage.loads[source], distance, source))
            elif stage.fits(source, target):
                found = source
                break
            else:
                full.append(heapq.heappop(self.heap))
        for entry in full:
            heapq.heappush(self.heap, entry)
        return found


class _Stage:
    """Loads of one stage while it is being mapped. Sources are counted by their order."""

    def __init__(self, sources: Sequence[SourceKey], count: int, places: Mapping[str, Place], room: Room) -> None:
        self.sources = sources
        self.share, self.extra = divmod(count, len(sources))  # ``extra`` sources may feed one more than ``share``
        self.loads = [0] * len(sources)
        self.programs: dict[str, set[int]] = defaultdict(set)
        self.routes: Routes = {}
        self._room = room
        self._places = [places.get(source.uid, ()) for source in sources]
        self._known = [frozenset(values) for values in zip(*self._places, strict=False)]
        self._queues: dict[str, dict[Place, _Queue]] = defaultdict(dict)  # by program; "": of all sources

    def cover(self, targets: Sequence[Wanted], previous: Mapping[TargetKey, SourceKey]) -> None:
        """Hold one replica of each program, where one is held already if there is one."""
        order = {source: index for index, source in enumerate(self.sources)}
        for target in targets:
            if self.programs[target.program]:
                continue
            held = previous.get(target.key)
            chosen = order.get(held) if held is not None else None
            if chosen is None or not self.fits(chosen, target):
                chosen = self._queue("", ()).first(self, target)
            if chosen is not None:
                self._hold(target, chosen)

    def keep(self, targets: Sequence[Wanted], previous: Mapping[TargetKey, SourceKey]) -> None:
        """Take over routes up to each source's share; the targets that come last are given up first."""
        held: dict[SourceKey, list[Wanted]] = {source: [] for source in self.sources}
        for target in targets:
            source = previous.get(target.key)
            if source in held:
                held[source].append(target)
        order = {source: index for index, source in enumerate(self.sources)}
        # The fullest sources get the larger shares: so the fewest routes move.
        fullest = sorted(held, key=lambda source: (-len(held[source]), order[source]))
        larger = set(fullest[: self.extra])
        for source in fullest:
            for target in held[source][: self.share + (source in larger)]:
                if self.fits(order[source], target):
                    self._take(target, order[source])

    def add(self, target: Wanted) -> None:
        """Choose a source for a new target."""
        # Values that no source has are as good as none: few places are left, and few queues.
        place = tuple(
            value if value in known else "" for value, known in zip(target.place, self._known, strict=False)
        )
        serving, every = self._queue(target.program, place), self._queue("", place)
        anyone = every.first(self, target)
        if anyone is None:
            return
        if self.loads[anyone] == 0:
            self._take(target, anyone)
            return
        server = serving.first(self, target)
        if server is not None and self._free(server):
            self._take(target, server)
        else:
            # Where memory leaves no choice, one carries more than its share.
            self._take(target, anyone)

    def fits(self, source: int, target: Wanted) -> bool:
        """Whether the source holds the program already, or its pod has room for it."""
        return source in self.programs[target.program] or self._room.fits(self.sources[source].uid, target.nbytes)

    def _free(self, source: int) -> bool:
        load = self.loads[source]
        if load != self.share:
            return load < self.share
        return self.extra > 0

    def _take(self, target: Wanted, source: int) -> None:
        self.routes[target.key] = self.sources[source]
        if self.loads[source] == self.share:
            self.extra -= 1
        self.loads[source] += 1
        self._hold(target, source)

    def _hold(self, target: Wanted, source: int) -> None:
        if source not in self.programs[target.program]:
            self.programs[target.program].add(source)
            self._room.take(self.sources[source].uid, target.nbytes)
            for place, queue in self._queues[target.program].items():
                self._push(queue, place, source)

    def _queue(self, program: str, place: Place) -> _Queue:
        found = self._queues[program].get(place)
        if found is None:
            found = self._queues[program][place] = _Queue()
            for source in self.programs[program] if program else range(len(self.sources)):
                self._push(found, place, source)
        return found

    def _push(self, queue: _Queue, place: Place, source: int) -> None:
        entry = (self.loads[source], distance(place, self._places[source]), source)
        heapq.heappush(queue.heap, entry)


def distance(one: Place, other: Place) -> int:
    """How far apart: which of the labels, the nearest first, is the first that both have alike; else their number."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a and a == b:
            return index
    return max(len(one), len(other))
