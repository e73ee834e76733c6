"""Whose pod it is. A pod belongs to the oldest WeightSync that matches it, and both say so. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weightsync.api.v1alpha1.weightsync import Selector
from weightsync_operator.planning.pods import Pod, by_age
from weightsync_operator.planning.selectors import matches


@dataclass(frozen=True, slots=True)
class Claim:
    """What one WeightSync asks for. Claims sort by age; name and uid decide among those of one second."""

    created: str
    name: str
    uid: str
    trainer: Selector
    rollout: Selector

    @property
    def rank(self) -> tuple[str, str, str]:
        """Older is smaller."""
        return (self.created, self.name, self.uid)

    def wants(self, pod: Pod) -> bool:
        """Whether either selector matches."""
        return matches(self.trainer, pod.labels) or matches(self.rollout, pod.labels)


@dataclass(frozen=True, slots=True)
class Contest:
    """A pod that another WeightSync matches too. ours: it belongs to this one, the older."""

    pod: str
    other: str
    ours: bool


@dataclass(frozen=True, slots=True)
class Owned:
    """The pods of one WeightSync that can take part, oldest first, and what was unclear about them.

    both: pods that trainer and rollout selector match; they count as trainers. absent: pods that a selector matches
    and that cannot take part, each with why.
    """

    trainers: tuple[Pod, ...]
    rollouts: tuple[Pod, ...]
    contests: tuple[Contest, ...] = ()
    both: tuple[str, ...] = ()
    absent_trainers: tuple[str, ...] = ()
    absent_rollouts: tuple[str, ...] = ()


def own(claim: Claim, others: Sequence[Claim], pods: Iterable[Pod]) -> Owned:
    """Pods of ``claim`` among the pods of its namespace. Pods that are gone count for nobody."""
    trainers: list[Pod] = []
    rollouts: list[Pod] = []
    contests: list[Contest] = []
    both: list[str] = []
    absent: tuple[list[str], list[str]] = ([], [])
    for pod in by_age(pod for pod in pods if claim.wants(pod)):
        trains, serves = matches(claim.trainer, pod.labels), matches(claim.rollout, pod.labels)
        if pod.gone:
            absent[not trains].append(f"{pod.name} is {pod.gone}")
            continue
        rivals = sorted((c for c in others if c.wants(pod)), key=lambda c: c.rank)
        ours = not rivals or claim.rank < rivals[0].rank
        if rivals:
            contests.append(Contest(pod.name, rivals[0].name, ours))
        if not ours:
            absent[not trains].append(f"{pod.name} belongs to WeightSync {rivals[0].name}")
            continue
        if trains and serves:
            both.append(pod.name)
        (trainers if trains else rollouts).append(pod)
    return Owned(tuple(trainers), tuple(rollouts), tuple(contests), tuple(both), *map(tuple, absent))
