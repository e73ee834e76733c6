"""Which engines take part in syncs, which wait, and which are refused and why. Pure.

An engine is whole when all its pods, and with them all its ranks, are there. What engines hold, layouts.py compares.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from weightsync.plan import MOST_TARGETS
from weightsync_operator.planning import layouts, reasons
from weightsync_operator.planning.grouping import Group
from weightsync_operator.planning.layouts import Member, Outsider, Rank
from weightsync_operator.planning.mapping import TargetKey
from weightsync_operator.planning.memo import Memo
from weightsync_operator.planning.pods import Pod, count, listing

_WAITING = frozenset({reasons.TARGETS_NOT_READY, reasons.ENGINE_INCOMPLETE})


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

    def without(self, outsiders: Sequence[Outsider]) -> "Membership":
        """Members that turned out to be none are refused."""
        if not outsiders:
            return self
        names = {outsider.engine for outsider in outsiders}
        members = tuple(member for member in self.members if member.name not in names)
        return Membership(members, self.waiting, (*self.refused, *outsiders))


def judge(groups: Sequence[Group], memo: Memo | None = None) -> Membership:
    """Engines, oldest first, into the three."""
    memo = memo or Memo()
    members: list[Member] = []
    waiting: list[Outsider] = []
    refused: list[Outsider] = []
    for group in groups:
        verdict = memo.verdict(group, _judge_one)
        if isinstance(verdict, Member):
            members.append(verdict)
        else:
            (waiting if verdict.reason in _WAITING else refused).append(verdict)
    memo.forget(groups)
    served, differing = layouts.compatible(members)
    return Membership(tuple(served), tuple(waiting), tuple(refused + differing))


def _judge_one(group: Group) -> Member | Outsider:
    for pod in group.pods:
        said = pod.announcement
        if pod.problem:
            return Outsider(group.name, reasons.ANNOUNCEMENT_UNREADABLE, f"pod {pod.name}: {pod.problem}")
        if said is not None and said.refused:
            return Outsider(group.name, reasons.ENGINE_REFUSED, f"pod {pod.name}: {said.refused}")
    if group.problem:
        return Outsider(group.name, reasons.ENGINE_INCONSISTENT, group.problem)
    if len(group.pods) != (group.size or len(group.pods)):
        return _pods_missing(group)
    return _silent(group) or _whole(group)


def _pods_missing(group: Group) -> Outsider:
    pods = listing(pod.name for pod in group.pods)
    there = f"engine {group.name} has {len(group.pods)} of its {group.size} pods ({pods})"
    if len(group.pods) > group.size:
        message = f"{there}: pods of several engines carry the same labels: give each engine labels of its own"
        return Outsider(group.name, reasons.ENGINE_INCONSISTENT, message)
    gated = next((pod for pod in group.pods if pod.gated), None)
    if gated is not None:
        # An engine that is not whole is never certified, so its gate never opens: nothing would ever move.
        return Outsider(
            group.name,
            reasons.ORDERED_STARTUP,
            f"{there}: pod {gated.name} waits at its readiness gate for the others, and they are made only once it "
            "is Ready: set startupPolicy: LeaderCreated (LeaderWorkerSet) or podManagementPolicy: Parallel",
        )
    places = f": missing {listing(map(str, group.missing))}" if group.missing else ""
    return Outsider(group.name, reasons.ENGINE_INCOMPLETE, f"{there}{places}")


def _silent(group: Group) -> Outsider | None:
    """The first pod of which something is not known yet."""
    for pod in group.pods:
        said = pod.announcement
        if said is None:
            return _wait(group, pod, "its agent has not announced itself")
        if not said.targets:
            return _wait(group, pod, "its engine has not described its parameters yet")
    for pod in group.pods:
        said = pod.announcement
        if said is None or not said.incarnation or not said.ready:
            return _wait(group, pod, "its engine does not run yet")
    return None


def _whole(group: Group) -> Member | Outsider:
    """The engine, if its pods' ranks are exactly its ranks."""
    ranks: list[Rank] = []
    totals: set[int] = set()
    for pod in group.pods:
        if (said := pod.announcement) is not None:
            ranks.extend(Rank(pod, said.address, t, TargetKey(pod.uid, t.rank)) for t in said.targets)
            totals.add(said.engine_ranks)
    ranks.sort(key=lambda rank: rank.target.rank)
    lead = ranks[0].pod
    whole = [rank.target.rank for rank in ranks] == list(range(len(ranks)))
    if len(group.pods) > 1 or totals != {0} or not whole:  # else an agent that says no number speaks for a pod alone
        problem = _ranks_wrong(group, ranks, totals - {0})
        if problem is not None:
            return problem
    if len(ranks) > MOST_TARGETS:
        message = (
            f"engine {group.name}: its {len(group.pods)} pods hold {len(ranks)} ranks, and one engine has at most "
            f"{MOST_TARGETS}: where they are several engines, set spec.rollout.group so that it parts them"
        )
        return Outsider(group.name, reasons.ENGINE_INCONSISTENT, message)
    said = lead.announcement
    address, incarnation = (said.address, said.incarnation) if said is not None else ("", "")
    checkpoint = said.checkpoint if said is not None else ""
    nbytes = max((p.announcement.replica_bytes for p in group.pods if p.announcement is not None), default=0)
    mode = said.mode if said is not None else "Staged"
    return Member(group.name, lead, address, incarnation, tuple(ranks), checkpoint, nbytes, mode)


def _ranks_wrong(group: Group, ranks: Sequence[Rank], totals: set[int]) -> Outsider | None:
    """Which ranks are twice, missing, or too many, by the pods' names."""
    twice = [rank for rank, number in Counter(rank.target.rank for rank in ranks).items() if number > 1]
    if twice:
        holders = listing(rank.pod.name for rank in ranks if rank.target.rank == twice[0])
        message = (
            f"engine {group.name}: rank {twice[0]} is announced by pods {holders}: where each pod is an engine of "
            "its own, set spec.rollout.group.by: Pod"
        )
        return Outsider(group.name, reasons.ENGINE_INCONSISTENT, message)
    if len(totals) > 1:
        said = listing(f"{rank.pod.name} says {n}" for rank in ranks if (n := _total(rank.pod)))
        message = f"engine {group.name}: its pods disagree about its number of ranks ({said}): start them alike"
        return Outsider(group.name, reasons.ENGINE_INCONSISTENT, message)
    if not totals and not group.size:
        return Outsider(
            group.name,
            reasons.ENGINE_INCOMPLETE,
            f"engine {group.name}: nothing says of how many pods it is: annotate its pods "
            "weightsync.io/engine-pods with their number",
        )
    total = totals.pop() if totals else len(ranks)
    there = {rank.target.rank for rank in ranks}
    missing = [str(rank) for rank in range(total) if rank not in there]
    if missing:
        pods = listing(pod.name for pod in group.pods)
        message = (
            f"engine {group.name}: of its {count(total, 'rank')} missing: {listing(missing)}; there: pods {pods}"
        )
        return Outsider(group.name, reasons.ENGINE_INCOMPLETE, message)
    if len(ranks) > total:
        message = f"engine {group.name}: pod {ranks[-1].pod.name} announces rank {ranks[-1].target.rank} of {total}"
        return Outsider(group.name, reasons.ENGINE_INCONSISTENT, f"{message}: start its pods alike")
    return None


def _total(pod: Pod) -> int:
    return pod.announcement.engine_ranks if pod.announcement is not None else 0


def _wait(group: Group, pod: Pod, why: str) -> Outsider:
    return Outsider(group.name, reasons.TARGETS_NOT_READY, f"pod {pod.name}: {why}")
