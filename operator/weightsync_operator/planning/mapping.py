"""Where the mapping is computed: which source rank writes which engine rank, stage by stage. Pure.

Within a stage, in this order:
1. A target keeps its source while both are there, unless that source carries more than its share.
2. A source that feeds nobody takes the next target: source i takes target i when all is new.
3. Else a target goes to the source that already serves its program (no further replica in that source's memory),
4. among those to the one with least to send, among equals to the first.

Shares: with t targets and n sources everyone feeds t // n or one more, so that no source's link is the slowest by
more than one replica. A new engine moves no other engine's routes: shares only grow.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class SourceKey(NamedTuple):
    """A trainer rank."""

    uid: str
    rank: int


class TargetKey(NamedTuple):
    """An engine rank: the pod and the rank within the engine."""

    uid: str
    rank: int


class Wanted(NamedTuple):
    """A target and the program of its replica."""

    key: TargetKey
    program: str


Routes = dict[TargetKey, SourceKey]


def map_stage(
    sources: Sequence[SourceKey], targets: Sequence[Wanted], previous: Mapping[TargetKey, SourceKey]
) -> Routes:
    """One source for each target. Both in a stable order; ``previous`` may name what is no longer there.

    Raises ValueError without sources: the caller plans only stages that have some.
    """
    if not sources:
        raise ValueError("a stage without sources cannot be mapped")
    stage = _Stage(sources, len(targets))
    kept = stage.keep(targets, previous)
    for target in targets:
        if target.key not in kept:
            stage.take(target, stage.choose(target.program))
    return stage.routes


class _Stage:
    """Loads of one stage while it is being mapped."""

    def __init__(self, sources: Sequence[SourceKey], count: int) -> None:
        self.order = {source: index for index, source in enumerate(sources)}
        self.share, self.extra = divmod(count, len(sources))  # ``extra`` sources may feed one more than ``share``
        self.load = dict.fromkeys(sources, 0)
        self.programs: dict[SourceKey, set[str]] = defaultdict(set)
        self.routes: Routes = {}

    def keep(self, targets: Sequence[Wanted], previous: Mapping[TargetKey, SourceKey]) -> set[TargetKey]:
        """Take over routes up to each source's share; the targets that come last are given up first."""
        held: dict[SourceKey, list[Wanted]] = {source: [] for source in self.order}
        for target in targets:
            source = previous.get(target.key)
            if source in held:
                held[source].append(target)
        # The fullest sources get the larger shares: so the fewest routes move.
        fullest = sorted(held, key=lambda source: (-len(held[source]), self.order[source]))
        for position, source in enumerate(fullest):
            for target in held[source][: self.share + (position < self.extra)]:
                self.take(target, source)
        return set(self.routes)

    def take(self, target: Wanted, source: SourceKey) -> None:
        self.routes[target.key] = source
        self.load[source] += 1
        self.programs[source].add(target.program)

    def choose(self, program: str) -> SourceKey:
        room = self.extra - sum(load > self.share for load in self.load.values())
        free = [s for s in self.order if self.load[s] < self.share + (room > 0)]
        idle = [s for s in free if self.load[s] == 0]
        if idle:
            return idle[0]
        return min(free, key=lambda s: (program not in self.programs[s], self.load[s], self.order[s]))
