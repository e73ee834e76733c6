"""Which engines can be fed by one trainer, though their layouts may differ. Pure.

Engines of several parallelisms (TP4 beside TP8) have several layouts of one checkpoint: they are served together
where their agents say that their programs read the same checkpoint. Where agents do not say so, equal layouts are all
that is known to fit together: of several, the one that most engines have is served, the oldest engine's among equals.
The others are refused until they, or the majority, change: a publish must fill what every engine asks for, so that
one pod with a wrong model would harm them all.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from weightsync.announcement import Mode, TargetRank
from weightsync_operator.planning import reasons
from weightsync_operator.planning.mapping import TargetKey
from weightsync_operator.planning.pods import Pod

Signature = tuple[tuple[int, str], ...]  # (rank, layout digest) of every rank of an engine


@dataclass(frozen=True, slots=True)
class Rank:
    """An engine rank and the pod that holds it."""

    pod: Pod
    address: str
    target: TargetRank
    key: TargetKey


@dataclass(frozen=True, slots=True)
class Member:
    """An engine that can take part. leader: the pod of its lowest rank; ranks: by rank; checkpoint and nbytes (of a
    rank's replica, at most) may be unsaid; mode: as the leader announced."""

    name: str
    leader: Pod
    address: str
    incarnation: str
    ranks: tuple[Rank, ...]
    checkpoint: str = ""
    nbytes: int = 0
    mode: Mode = "Staged"

    @property
    def signature(self) -> Signature:
        """What is equal among engines of one layout."""
        return tuple((rank.target.rank, rank.target.layout) for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Outsider:
    """An engine that does not take part (yet)."""

    engine: str
    reason: str
    message: str


def compatible(members: Sequence[Member]) -> tuple[list[Member], list[Outsider]]:
    """Those that are served, oldest first as given, and those that do not fit to them."""
    signatures = [member.signature for member in members]
    # While agents of two releases run side by side, one that says its checkpoint speaks for all of its layout.
    said = {s: member.checkpoint for s, member in zip(signatures, members, strict=True) if member.checkpoint}
    kinds = [said.get(signature) or signature for signature in signatures]
    counts = Counter(kinds)
    if len(counts) < 2:
        return list(members), []
    # Counter.most_common keeps the order of first sight among equals: the oldest engine's comes first.
    served = counts.most_common(1)[0][0]
    example = members[kinds.index(served)]
    kept = [member for member, kind in zip(members, kinds, strict=True) if kind == served]
    return kept, [_differing(m, example) for m, kind in zip(members, kinds, strict=True) if kind != served]


def _differing(member: Member, example: Member) -> Outsider:
    if member.checkpoint and example.checkpoint:
        return Outsider(
            member.name,
            reasons.LAYOUTS_DIFFER,
            f"pod {member.leader.name} reads checkpoint {member.checkpoint[:12]}, pod {example.leader.name} "
            f"{example.checkpoint[:12]}, which more engines or the oldest read: run the same model in both",
        )
    theirs, ours = dict(member.signature), dict(example.signature)
    rank = next(r for r in sorted(theirs.keys() | ours.keys()) if theirs.get(r) != ours.get(r))
    return Outsider(
        member.name,
        reasons.LAYOUTS_DIFFER,
        f"rank {rank} of pod {_holder(member, rank)} has {_layout(theirs.get(rank))}, that of pod "
        f"{_holder(example, rank)} {_layout(ours.get(rank))}, which more engines or the oldest have: run the same "
        "model and parallelism in both",
    )


def _holder(member: Member, rank: int) -> str:
    return next((r.pod.name for r in member.ranks if r.target.rank == rank), member.leader.name)


def _layout(digest: str | None) -> str:
    return "no parameters" if digest is None else f"layout {digest[:12]}"
