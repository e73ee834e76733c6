"""Bugs on purpose that show in rare moments, or at a rare pace: schedules are aimed at it, and are any otherwise."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tools.simulate import faults as f
from tools.simulate.ambush import KINDS
from tools.simulate.bugs import BUGS, Patch, Patches, bug_among, without
from tools.simulate.trainer import Trainer
from weightsync_agent.protocol import coordinator, engine_leader, fence, standing

__all__ = ["BUGS"]  # all: the others', too


def ambushed(*moments: str) -> Patch:
    """Each schedule has one ambush more, which waits for one of these."""
    places = [(KINDS.index(kind) + 0.5) / len(KINDS) for kind in KINDS if kind.name.startswith(moments)]

    def often(p: Patches) -> None:
        draw = p.set(f, "draw", None)

        def drawn(rng: Random, window: int) -> list[f.Fault]:
            at = rng.randrange(10, window)
            waits = f.Fault(f.AMBUSH, at, 2.0 + 3.0 * rng.random(), rng.choice(places), rng.random())
            return sorted([*draw(rng, window), waits], key=lambda fault: fault.at)

        p.set(f, "draw", drawn)

    return often


def back_to_back(p: Patches) -> None:
    """The trainer's steps take next to no time: a publish waits whenever a sync ends."""

    def begin(trainer: Trainer, world: Any, ranks: Any) -> None:
        world.interval = 0.02
        old(trainer, world, ranks)

    old = p.set(Trainer, "__init__", begin)


order_bug = bug_among(ambushed("a coordinator whose orders are out"))
process_bug = bug_among(ambushed("an engine that is about to go on"))
number_bug = bug_among(ambushed("a coordinator that hands over"))
term_bug = bug_among(ambushed("a coordinator that is replaced"))
pace_bug = bug_among(back_to_back)


@pace_bug("an engine that failed once waits for a repair, which is begun between two syncs only")
def _repairs_alone(p: Patches) -> None:
    p.set(standing.Known, "holds_others", lambda known, now: known.failures > 0)


@order_bug("an order that was not answered counts as refused: the target is told that nobody writes")
def _silence_is_refusal(p: Patches) -> None:
    old = coordinator.Coordinator._no_order
    p.effect(coordinator.Coordinator, old, lambda m, e, now: old(m, replace(e, certain=True), now))


@process_bug("whoever answers continue is taken for what was committed to")
def _no_confirm(p: Patches) -> None:
    without("CONFIRM")(p)


# An engine that is told so refuses a grant and a commit, and a coordinator asks for neither: all three have to go.
@number_bug(
    "an older version may follow a newer one: the number of the last is asked from nobody, and checked by nobody"
)
def _commit_older(p: Patches) -> None:
    p.set(engine_leader.EngineLeader, "outdated", lambda machine, lineage, number: "")
    p.set(coordinator.Coordinator, "_adopt", lambda machine, decided: None)


@term_bug("requests of a term that is over are taken")
def _accept_stale_term(p: Patches) -> None:
    def check(self: fence.Fence, number: int, holder: str = "") -> None:
        return None

    def raise_to(self: fence.Fence, number: int, holder: str) -> None:
        self.term, self.coordinator = max(self.term, number), holder

    p.set(fence.Fence, "check", check)
    p.set(fence.Fence, "raise_to", raise_to)
