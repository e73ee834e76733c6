"""Which engines take part in syncs, which wait, and which are refused and why. Pure.

All engines of one WeightSync must hold the same parameters, rank by rank. Where they do not, the layout that most
engines have is served, the older engine's among equals; the others are refused until they, or the majority, change.
So one pod of a wrong image harms itself alone, and a rollout to a new layout turns over in its middle.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from weightsync.announcement import TargetRank
from weightsync_operator.planning import reasons
from weightsync_operator.planning.grouping import Group
from weightsync_operator.planning.pods import Pod

Signature = tuple[tuple[int, str], ...]  # (rank, layout digest) of every rank of an engine


@dataclass(frozen=True, slots=True)
class Rank:
    """An engine rank and the pod that holds it."""

    pod: Pod
    address: str
    target: TargetRank


@dataclass(frozen=True, slots=True)
class Member:
    """An engine that takes part. ranks: by rank."""

    group: Group
    address: str
    incarnation: str
    ranks: tuple[Rank, ...]

    @property
    def signature(self) -> Signature:
        """What must be equal among all engines."""
        return tuple((rank.target.rank, rank.target.layout) for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Outsider:
    """An engine that does not take part (yet)."""

    engine: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Membership:
    """members: oldest first; waiting: will come by themselves; refused: someone must act."""

    members: tuple[Member, ...] = ()
    waiting: tuple[Outsider, ...] = ()
    refused: tuple[Outsider, ...] = ()

    @property
    def matched(self) -> int:
        """All engines that the selector matches."""
        return len(self.members) + len(self.waiting) + len(self.refused)


def judge(groups: Sequence[Group]) -> Membership:
    """Engines, oldest first, into the three."""
    members, waiting, refused = [], [], []
    for group in groups:
        verdict = _judge_one(group)
        if isinstance(verdict, Member):
            members.append(verdict)
        elif verdict.reason == reasons.TARGETS_NOT_READY:
            waiting.append(verdict)
        else:
            refused.append(verdict)
    served, differing = _same_layout(members)
    return Membership(tuple(served), tuple(waiting), tuple(refused + differing))


def _judge_one(group: Group) -> Member | Outsider:
    ranks: list[Rank] = []
    for pod in group.pods:
        said = pod.announcement
        if pod.problem:
            return Outsider(group.name, reasons.ANNOUNCEMENT_UNREADABLE, f"pod {pod.name}: {pod.problem}")
        if said is None:
            return _wait(group, pod, "its agent has not announced itself")
        if said.refused:
            return Outsider(group.name, reasons.ENGINE_REFUSED, f"pod {pod.name}: {said.refused}")
        if not said.targets:
            return _wait(group, pod, "its engine has not described its parameters yet")
        ranks.extend(Rank(pod, said.address, target) for target in said.targets)
    leader = group.leader.announcement
    if leader is None or not leader.incarnation or not leader.ready:
        return _wait(group, group.leader, "its engine does not run yet")
    ranks.sort(key=lambda rank: rank.target.rank)
    return Member(group, leader.address, leader.incarnation, tuple(ranks))


def _wait(group: Group, pod: Pod, why: str) -> Outsider:
    return Outsider(group.name, reasons.TARGETS_NOT_READY, f"pod {pod.name}: {why}")


def _same_layout(members: Sequence[Member]) -> tuple[list[Member], list[Outsider]]:
    counts = Counter(member.signature for member in members)
    if len(counts) < 2:
        return list(members), []
    # Counter.most_common keeps the order of first sight among equals: the oldest engine's layout comes first.
    served = counts.most_common(1)[0][0]
    example = next(member for member in members if member.signature == served)
    kept = [member for member in members if member.signature == served]
    return kept, [_differing(m, example) for m in members if m.signature != served]


def _differing(member: Member, example: Member) -> Outsider:
    theirs, ours = dict(member.signature), dict(example.signature)
    rank = next(r for r in sorted(theirs.keys() | ours.keys()) if theirs.get(r) != ours.get(r))
    return Outsider(
        member.group.name,
        reasons.LAYOUTS_DIFFER,
        f"rank {rank} of pod {_holder(member, rank)} has {_layout(theirs.get(rank))}, that of pod "
        f"{_holder(example, rank)} {_layout(ours.get(rank))}, which more engines or the oldest have: run the same "
        "model and parallelism in both",
    )


def _holder(member: Member, rank: int) -> str:
    return next((r.pod.name for r in member.ranks if r.target.rank == rank), member.group.leader.name)


def _layout(digest: str | None) -> str:
    return "no parameters" if digest is None else f"layout {digest[:12]}"
