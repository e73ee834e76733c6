"""Which trainer ranks can feed engines, and what is missing. Pure.

Ranks come from what agents announced when Publishers connected. They must agree on the world and on the stages, and
no rank may come twice: else no plan is made from them, because bytes of one rank could come from another life of it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weightsync.announcement import Announcement, SourceRank
from weightsync.plan import Source
from weightsync_operator.planning import reasons
from weightsync_operator.planning.pods import Pod, listing


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a condition says."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Sources:
    """The trainer's side. pods: with ranks, oldest first; usable: every stage has a rank, and they agree.

    findings: what is wrong, the gravest first; nodes: where the pods run, by uid; room: bytes that replicas may take
    in each, by uid, 0 where it is not known.
    """

    pods: tuple[Source, ...]
    usable: bool
    findings: tuple[Finding, ...] = ()
    nodes: Mapping[str, str] = field(default_factory=dict)
    room: Mapping[str, int] = field(default_factory=dict)

    @property
    def stages(self) -> int:
        """Number of pipeline stages; 0 while no rank is there."""
        return max((rank.stages for pod in self.pods for rank in pod.ranks), default=0)


def gather(pods: Sequence[Pod], selector: str, absent: Sequence[str] = ()) -> Sources:
    """What the trainer pods (oldest first) announce.

    For the message where there are none: selector, as text; absent: those that it matches all the same, with why.
    """
    if not pods:
        return Sources((), usable=False, findings=(_no_pod(selector, absent),))
    found, waiting = [], []
    for pod in pods:
        announced = pod.announcement
        if announced is not None and announced.ready and announced.sources:
            found.append(_source(pod, announced))
        else:
            waiting.append(f"{pod.name} ({_why_waiting(pod)})")
    usable, findings = _judged(found, waiting)
    # Also of those that do not fit together: until they do, the last plan is in force, with its pods.
    nodes = {pod.uid: pod.node for pod in pods}
    room = {pod.uid: pod.announcement.room_bytes for pod in pods if pod.announcement is not None}
    return Sources(tuple(found), usable=usable, findings=findings, nodes=nodes, room=room)


def _judged(found: Sequence[Source], waiting: list[str]) -> tuple[bool, tuple[Finding, ...]]:
    """Whether they can feed engines, and what is wrong with them."""
    if not found:
        return False, (_none_ready(waiting),)
    grave = _disagreement(found) or _duplicates(found)
    if grave is not None:
        return False, (grave,)
    bare, findings = _bare_stages(found), []
    missing = _missing_ranks(found, bare, waiting)
    if missing is not None:
        findings.append(missing)
    if bare:
        findings.append(_missing_stages(found, bare))
    return not bare, tuple(findings)


def _source(pod: Pod, announced: Announcement) -> Source:
    ranks = tuple(sorted(announced.sources, key=lambda rank: rank.rank))
    return Source(uid=pod.uid, pod=pod.name, address=announced.address, ranks=ranks, devices=announced.devices)


def _why_waiting(pod: Pod) -> str:
    if pod.problem:
        return pod.problem
    if pod.announcement is None:
        return "its agent has not announced itself"
    return "no Publisher has connected"


def _no_pod(selector: str, absent: Sequence[str]) -> Finding:
    if absent:
        return Finding(
            reasons.NO_SOURCES, f"no pod of the trainer selector {selector} can take part: {listing(absent)}"
        )
    return Finding(
        reasons.NO_SOURCES,
        f"no pod matches the trainer selector {selector}: label trainer pods so, or change spec.trainer.selector",
    )


def _none_ready(waiting: list[str]) -> Finding:
    return Finding(reasons.SOURCES_NOT_READY, f"waiting for trainer pods: {listing(waiting)}")


def _ranks(found: Sequence[Source]) -> list[tuple[Source, SourceRank]]:
    return [(source, rank) for source in found for rank in source.ranks]


def _disagreement(found: Sequence[Source]) -> Finding | None:
    (first, reference), *rest = _ranks(found)
    for source, rank in rest:
        if (rank.world_size, rank.stages) != (reference.world_size, reference.stages):
            return Finding(
                reasons.SOURCES_DISAGREE,
                f"pod {first.pod} rank {reference.rank} belongs to a world of {reference.world_size} ranks in "
                f"{reference.stages} stages, pod {source.pod} rank {rank.rank} to one of {rank.world_size} in "
                f"{rank.stages}: restart the trainer pods of one of them",
            )
    for source, rank in _ranks(found):
        if rank.rank >= rank.world_size or rank.stage >= rank.stages:
            return Finding(
                reasons.SOURCES_DISAGREE,
                f"pod {source.pod} announces rank {rank.rank} of {rank.world_size} and stage {rank.stage} of "
                f"{rank.stages}, counted from 0: correct the arguments of its Publisher",
            )
    return None


def _duplicates(found: Sequence[Source]) -> Finding | None:
    counts = Counter(rank.rank for _, rank in _ranks(found))
    twice = sorted(rank for rank, count in counts.items() if count > 1)
    if not twice:
        return None
    holders = [source.pod for source, rank in _ranks(found) if rank.rank == twice[0]]
    return Finding(
        reasons.RANKS_DUPLICATED,
        f"rank {twice[0]} is announced by {listing(holders)}: give each Publisher a rank of its own, or narrow "
        "spec.trainer.selector to one training run",
    )


def _bare_stages(found: Sequence[Source]) -> list[int]:
    fed = {rank.stage for _, rank in _ranks(found)}
    return [stage for stage in range(_ranks(found)[0][1].stages) if stage not in fed]


def _missing_ranks(found: Sequence[Source], bare: list[int], waiting: list[str]) -> Finding | None:
    world = _ranks(found)[0][1].world_size
    there = {rank.rank for _, rank in _ranks(found)}
    missing = [rank for rank in range(world) if rank not in there]
    if not missing:
        return None
    have = listing((f"{rank.rank} ({source.pod})" for source, rank in _ranks(found)), 3)
    stages = f"; stages without a rank: {listing(map(str, bare))}" if bare else ""
    pods = f"; waiting for pods {listing(waiting)}" if waiting else ""
    return Finding(
        reasons.RANKS_MISSING,
        f"the trainer has {world} ranks, missing: {listing(map(str, missing))}; there: {have}{stages}{pods}",
    )


def _missing_stages(found: Sequence[Source], bare: list[int]) -> Finding:
    pods = listing(source.pod for source in found)
    return Finding(
        reasons.STAGES_MISSING,
        f"no rank publishes stage {listing(map(str, bare))} of {_ranks(found)[0][1].stages}; trainer pods: {pods}; "
        "each stage needs at least one rank",
    )
