"""How the time of a plan grows with engines: the operator's pure part alone, in this process."""

from __future__ import annotations

import gc
import time

from weightsync.announcement import Announcement, SourceRank, TargetRank
from weightsync_operator import cycles
from weightsync_operator.planning import membership, slicing, sources
from weightsync_operator.planning.compose import Wish, compose
from weightsync_operator.planning.grouping import group
from weightsync_operator.planning.pods import Pod, by_age

RANKS = 4
STAGES = 2
TRAINERS = 16
TRIES = 3


def pods(engines: int) -> tuple[list[Pod], list[Pod]]:
    """Trainer pods of a rank each, and engines of RANKS ranks in one pod."""
    trainers, rollouts = [], []
    for number in range(TRAINERS):
        rank = SourceRank(
            rank=number, world_size=TRAINERS, stage=number % STAGES, stages=STAGES, nonce=f"{number:016x}"
        )
        said = Announcement(address=f"t{number}:1", ready=True, sources=(rank,))
        trainers.append(Pod("x", f"t{number:05d}", f"t{number}", announcement=said))
    for number in range(engines):
        targets = tuple(TargetRank(rank=r, layout=f"{r:032x}", program=f"{r:032x}") for r in range(RANKS))
        said = Announcement(address=f"e{number}:1", ready=True, incarnation="1", targets=targets)
        rollouts.append(Pod("x", f"e{number:05d}", f"e{number}", announcement=said))
    return trainers, rollouts


def growth() -> tuple[float, float]:
    """Processor seconds of a plan for 1,000 engines, and of one for 10,000, from pods to slices, from nothing.

    The small one is the mean of ten different thousands, so that both go through as much memory; in turns, and the
    least of TRIES, since others disturb; cycles are looked for as in the operator.
    """
    cycles.look_seldom()
    trainers, rollouts = pods(10_000)
    thousands = [rollouts[first : first + 1_000] for first in range(0, 10_000, 1_000)]
    cycles.settle()
    small, large = [], []
    for _ in range(TRIES):
        small.append(sum(_seconds(trainers, thousand) for thousand in thousands) / len(thousands))
        large.append(_seconds(trainers, rollouts))
    gc.unfreeze()
    return min(small), min(large)


def _seconds(trainers: list[Pod], rollouts: list[Pod]) -> float:
    started = time.process_time()
    with cycles.none_looked_for():
        members = membership.judge(group(by_age(rollouts))).members
        plan = compose(Wish(name="x/y"), sources.gather(by_age(trainers), "app=trainer"), members, None, now=1)
        if plan is None or len(plan.engines) != len(rollouts):
            raise RuntimeError("the plan lacks engines")
        slicing.cut(plan, ("y", "uid"), ())
    return time.process_time() - started
