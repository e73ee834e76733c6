"""Bugs on purpose of engines of two pods; all engines of their schedules are, and faults meet their second pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools.simulate import crew_side, faults, pods
from tools.simulate import world as worlds
from tools.simulate.bugs import Patches, bug_among
from tools.simulate.clock import Work
from tools.simulate.pull_bugs import BUGS
from weightsync.wire import members as w
from weightsync_agent.protocol import engine_leader, engine_member

__all__ = ["BUGS"]  # all: the others', too

OFTEN = 8  # as often as in other schedules


class _Never:
    """Draws what makes no engine a direct one."""

    @staticmethod
    def random() -> float:
        """Nearly the highest."""
        return 0.99


@bug_among
def pair_bug(p: Patches) -> None:
    """Every engine is of two pods, and members fail often."""
    add = p.set(worlds.World, "add_engine", None)

    def pairs(world: worlds.World, address: str = "") -> None:
        world.engine_ranks = 2
        add(world, address)

    p.set(worlds.World, "add_engine", pairs)
    p.set(worlds.World, "shape_of", lambda world, engine: _Never())
    p.set(pods, "PAIRS", 1.0)
    p.set(faults, "WEIGHTS", {
        kind: weight * (OFTEN if kind.startswith("member") else 1) for kind, weight in faults.WEIGHTS.items()
    })  # fmt: skip


@pair_bug("the leader commits when its own ranks are sealed, and takes the engine's word for the others'")
def _commit_without_the_member(p: Patches) -> None:
    def holding(side: crew_side.CrewSide, version: Any, grants: Any, commit: Any, work: Callable[[], Work]) -> Work:
        member = side.agent.pod.member
        for rank, grant in grants:
            for files in member.volume.arenas.values() if member is not None and rank in side.ranks else ():
                side.sealed[grant] = w.SealedRank(rank=rank, program=files[0].header.program, arena=files[0].name)
        yield from work()

    def apply(side: crew_side.CrewSide, life: str, refs: Any) -> Work:
        yield side.agent.engine.call(side.agent.life, "apply", refs)

    p.set(crew_side.CrewSide, "holding", holding)
    p.set(crew_side.CrewSide, "apply", apply)


@pair_bug("the leader forgets that a member's agent has restarted")
def _forget_a_members_restart(p: Patches) -> None:
    p.set(engine_leader.EngineLeader, "crew_changed", lambda machine, pods_: None)


@pair_bug("the leader certifies its own ranks only")
def _certify_own_ranks_only(p: Patches) -> None:
    def nothing(side: crew_side.CrewSide, step: str, grants: dict[int, str]) -> Work:
        yield side.agent.loop.sleep(0.001)

    p.set(crew_side.CrewSide, "certify", nothing)


@pair_bug("a member lets go of what it has sealed before it is applied")
def _let_go_at_once(p: Patches) -> None:
    hold = engine_member.EngineMember._hold

    def at_once(machine: engine_member.EngineMember, event: Any, now: float) -> list[object]:
        actions = [*hold(machine, event, now), engine_member.LetGo(event.grants)]
        machine.version, machine.grants = None, ()
        return actions

    p.effect(engine_member.EngineMember, hold, at_once)
