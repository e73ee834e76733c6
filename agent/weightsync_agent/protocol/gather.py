"""Pairing the ranks' publishes into versions. Pure.

Every trainer rank calls publish() once a step; the n-th calls of all ranks are one version. Publishes of two steps
are never paired: the version would mix them. A rank that restarted alone counts anew, and nothing but its word can
say which step it is at: all ranks then give the same label, which must name the step. Two labels are never paired,
whatever the counts say. The lineage is a digest of all ranks' nonces, so that one rank restarting alone begins a new
lineage for all, and the same lives always give the same lineage, whoever coordinates.

Ranks learn of a new plan one after another. Each says which programs it is about to fill, by its own plan; a version
serves the engines for which every rank that feeds them does. The others wait for the next one: nobody is at fault.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from weightsync.errors import Refused
from weightsync.plan import Engine, Route
from weightsync.wire.v1 import PublishRequest


@dataclass(frozen=True)
class Gathered:
    """All ranks are there: one version. began: when the first of them called; programs: that it is made of."""

    lineage: str
    number: int
    label: str
    ranks: Mapping[int, PublishRequest]
    began: float = 0.0
    programs: frozenset[str] = frozenset()

    def serves(self, engine: Engine) -> bool:
        """Its programs are the version's, and each rank that feeds it by the plan fills them."""
        return all(t.rank.program in self.programs for t in engine.targets) and self.fed(engine)

    def fed(self, engine: Engine) -> bool:
        """Each rank that feeds it published, and fills its programs. One that did not say fills all."""
        return all(self._fills(route, t.rank.program) for t in engine.targets for route in t.routes)

    def _fills(self, route: Route, program: str) -> bool:
        request = self.ranks.get(route.rank)
        return request is not None and request.writer.uid == route.source and _fills(request, program)


def lineage_of(nonces: Mapping[int, str]) -> str:
    """8 bytes of blake2b over (rank, nonce) by rank, in hex."""
    total = hashlib.blake2b(digest_size=8)
    for rank in sorted(nonces):
        total.update(rank.to_bytes(4, "big") + bytes.fromhex(nonces[rank]))
    return total.hexdigest()


@dataclass
class Gather:
    """Publishes that wait for the other ranks'.

    A version's number is its ranks' common step: it rises with every publish, and every coordinator counts alike
    without remembering.
    """

    waiting: dict[int, PublishRequest] = field(default_factory=dict)
    began: float = 0.0
    last: Gathered | None = None
    paired: dict[int, tuple[str, int]] = field(default_factory=dict)  # by rank: nonce and sequence of the newest

    def given(self, request: PublishRequest) -> Gathered | None:
        """The version that this very publish is part of already: a request may come twice."""
        paired = self.last.ranks.get(request.writer.rank) if self.last is not None else None
        return self.last if paired is not None and _same(paired, request) else None

    def add(
        self, request: PublishRequest, now: float, engines: Iterable[Engine] = ()
    ) -> tuple[Gathered | None, list[PublishRequest]]:
        """Take a rank's publish; returns the version if it was the last to come, and publishes that are void.

        engines: as the plan has them now. The version's programs are those of the engines that all ranks feed.

        Void is what the same rank left waiting before (it restarted, or gave up), and a publish that the others
        have given up already: pairing it with their next one would mix two steps of training. Raises Refused
        where the ranks do not agree on the size of their world.
        """
        rank = request.writer.rank
        for other in self.waiting.values():
            if other.world_size != request.world_size or other.stages != request.stages:
                raise Refused(
                    f"rank {rank} says {request.world_size} ranks in {request.stages} stages, rank "
                    f"{other.writer.rank} says {other.world_size} in {other.stages}: give every Publisher the same",
                    reason="WorldsDiffer",
                )
        before = self.waiting.get(rank)
        if before is not None and before.nonce == request.nonce and before.sequence > request.sequence:
            return None, [request]  # it was delayed on its way: the rank is further by now
        nonce, sequence = self.paired.get(rank, ("", 0))
        if nonce == request.nonce and request.sequence <= sequence:
            return None, [request]
        void = [self.waiting.pop(rank)] if before is not None and not _same(before, request) else []
        if nonce not in ("", request.nonce):
            void += self._of_the_life_before(request)
        if not self.waiting:
            self.began = now
        self.waiting[rank] = request
        if len(self.waiting) < request.world_size:
            return None, void
        late = self._late()
        if late:
            return None, void + [self.waiting.pop(r) for r in late]
        ranks, self.waiting = dict(sorted(self.waiting.items())), {}
        lineage = lineage_of({r: each.nonce for r, each in ranks.items()})
        label = next((each.label for each in ranks.values() if each.label), "")
        self.paired = {r: (each.nonce, each.sequence) for r, each in ranks.items()}
        found = Gathered(lineage, max(each.step for each in ranks.values()), label, ranks, self.began)
        programs = frozenset(t.rank.program for engine in engines if found.fed(engine) for t in engine.targets)
        self.last = replace(found, programs=programs)
        return self.last, void

    def _late(self) -> list[int]:
        """Ranks whose publish is of another step than the others'.

        One label on all of them names one step. Where labels differ, or some are lacking, counts decide; but not the
        count of a life that has been in no version yet, since it may have begun anew: what waited longest is void.
        """
        labels = [each.label for each in self.waiting.values() if each.label]  # in the order in which they came
        if len(labels) == len(self.waiting) and len(set(labels)) == 1:
            return []
        newest = max(each.step for each in self.waiting.values())
        late = [rank for rank, each in self.waiting.items() if each.step < newest]
        strangers = any(self.paired.get(rank, ("", 0))[0] != each.nonce for rank, each in self.waiting.items())
        if len(set(labels)) > 1 and (strangers or not late):
            return [rank for rank, each in self.waiting.items() if each.label not in ("", labels[-1])]
        return late

    def _of_the_life_before(self, request: PublishRequest) -> list[PublishRequest]:
        """The rank has restarted: what its partners of then left waiting may be of that life."""
        left = [
            rank
            for rank, each in self.waiting.items()
            if rank != request.writer.rank
            and self.paired.get(rank, ("", 0))[0] == each.nonce
            and (not each.label or each.label != request.label)
        ]
        return [self.waiting.pop(rank) for rank in left]

    def stages(self, program: str) -> set[int]:
        """Whose ranks fill a program of the last version; empty: it is none of that version."""
        if self.last is None or program not in self.last.programs:
            return set()
        return {each.stage for each in self.last.ranks.values() if _fills(each, program)}

    def drop(self, request: PublishRequest) -> None:
        """The rank gave up waiting for the others."""
        if self.waiting.get(request.writer.rank) is request:
            del self.waiting[request.writer.rank]

    def missing(self) -> list[int]:
        """Ranks whose publish is awaited while others wait."""
        if not self.waiting:
            return []
        size = next(iter(self.waiting.values())).world_size
        return [rank for rank in range(size) if rank not in self.waiting]


def _fills(request: PublishRequest, program: str) -> bool:
    return request.programs is None or program in request.programs


def _same(a: PublishRequest, b: PublishRequest) -> bool:
    """One call of publish(), whatever was learned between its two requests."""
    return (a.writer, a.nonce, a.sequence) == (b.writer, b.nonce, b.sequence)
