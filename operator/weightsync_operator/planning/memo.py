"""What the last pass over one WeightSync came to, so that the next makes only what changed anew. Pure.

Nothing depends on it but time: every result is what it would be without.
"""

from collections.abc import Callable, Sequence

from weightsync.plan import Plan
from weightsync_operator.planning.grouping import Group
from weightsync_operator.planning.layouts import Member, Outsider
from weightsync_operator.planning.mapping import Routes, SourceKey, TargetKey

StageRoutes = dict[int, Routes]
Verdict = Member | Outsider


class Memo:
    """One WeightSync's. It holds records that are alive anyway: those of the store, and of the plan in force."""

    def __init__(self) -> None:
        self._verdicts: dict[str, tuple[Group, Verdict]] = {}
        self._routes: tuple[Plan | None, StageRoutes] = (None, {})

    def verdict(self, group: Group, judge: Callable[[Group], Verdict]) -> Verdict:
        """Of an engine: the last one, while its pods' records are the same objects."""
        known = self._verdicts.get(group.name)
        if known is not None and _same(known[0], group):
            return known[1]
        found = judge(group)
        self._verdicts[group.name] = (group, found)
        return found

    def forget(self, groups: Sequence[Group]) -> None:
        """Keep nothing of engines that are not among these."""
        if len(self._verdicts) > len(groups):
            names = {group.name for group in groups}
            self._verdicts = {name: known for name, known in self._verdicts.items() if name in names}

    def routes(self, plan: Plan | None) -> StageRoutes:
        """Stage -> target -> source of a plan. Not to be changed."""
        if self._routes[0] is not plan or plan is None:
            self._routes = (plan, previous_routes(plan))
        return self._routes[1]


def _same(one: Group, other: Group) -> bool:
    if (one.size, one.missing, one.problem, len(one.pods)) != (
        other.size, other.missing, other.problem, len(other.pods),
    ):  # fmt: skip
        return False
    return all(a is b for a, b in zip(one.pods, other.pods, strict=True))


def previous_routes(plan: Plan | None) -> StageRoutes:
    """Stage -> target -> source of a plan."""
    found: StageRoutes = {}
    for engine in plan.engines if plan else ():
        for target in engine.targets:
            key = TargetKey(target.uid, target.rank.rank)
            for step in target.routes:
                found.setdefault(step.stage, {})[key] = SourceKey(step.source, step.rank)
    return found
