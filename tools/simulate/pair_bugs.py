"""Bugs on purpose of engines of two pods; all engines of their schedules are, and faults meet their second pods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tools.simulate import crew_side, faults, member_side, pods
from tools.simulate import world as worlds
from tools.simulate.bugs import Patches, bug
from tools.simulate.clock import Work
from tools.simulate.direct_bugs import BUGS
from weightsync.wire import members as w
from weightsync_agent.protocol import engine_leader, engine_member

__all__ = ["BUGS"]  # all: the others', too

Patch = Callable[[Patches], None]
OFTEN = 8  # as often as in other schedules


class _Never:
    """Draws what makes no engine a direct one."""

    @staticmethod
    def random() -> float:
        """Nearly the highest."""
        return 0.99


def pair_bug(sentence: str) -> Callable[[Patch], Patch]:
    """As bugs.bug."""

    def register(patch: Patch) -> Patch:
        def everywhere(p: Patches) -> None:
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
            patch(p)

        bug(sentence, patch.__name__.strip("_").replace("_", "-"))(everywhere)
        return patch

    return register


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


@pair_bug("a member holds its arenas for a leader whose agent is gone")
def _held_for_ever(p: Patches) -> None:
    free = engine_member.EngineMember._free
    p.effect(engine_member.EngineMember, free, engine_member.EngineMember._learn)
    _stays(p, "HELD")


@pair_bug("what a member has lent never comes back")
def _lent_for_ever(p: Patches) -> None:
    unlend = engine_member.EngineMember._unlend
    p.effect(engine_member.EngineMember, unlend, engine_member.EngineMember._learn)
    _stays(p, "LENT")


def _stays(p: Patches, state: str) -> None:
    """No answer of the leader leads out of that state."""
    machine, key = engine_member.EngineMember, (engine_member.MemberState[state], engine_member.LeaderAnswered)
    rows = tuple(replace(row, to=key[0]) for row in machine.table[key])
    p.set(machine, "table", {**machine.table, key: rows})


@pair_bug("a member obeys the coordinators of all terms")
def _member_obeys_every_term(p: Patches) -> None:
    p.set(member_side.MemberAgent, "_obey", lambda agent, number, holder: None)
