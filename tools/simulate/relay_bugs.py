"""Bugs on purpose of engines that pass a version on within a sync; in their schedules many do, and fail at it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tools.simulate import faults as f
from tools.simulate import joining, relaying
from tools.simulate import rank_target as ranks
from tools.simulate import world as worlds
from tools.simulate.bugs import Patches, bug_among
from tools.simulate.memory import number_of
from tools.simulate.pair_bugs import BUGS
from weightsync.errors import Refused
from weightsync_agent.protocol import relaying as protocol
from weightsync_agent.protocol import sync
from weightsync_agent.protocol import target as t

__all__ = ["BUGS"]  # all: the others', too


@bug_among
def relay_bug(p: Patches) -> None:
    """Every schedule has a fanout, and more of them are steered."""
    p.set(worlds, "RELAYING", 1.0)
    p.set(f, "STEERED", 0.6)


@relay_bug("an engine that reads from another believes that one's digests")
def _relay_without_verifying(p: Patches) -> None:
    def bucket(self: relaying.Relaying, reader: Any, into: relaying.Into, session: str, which: Any) -> Any:
        yield reader.read(session, number_of(which.offset))
        yield from into.target.pulled(into.arena, which, which)

    p.set(relaying.Relaying, "_bucket", bucket)
    p.set(joining, "SPOILT", 0.02)


@relay_bug("sources are ordered to write to an engine that reads from another, too")
def _written_and_relayed(p: Patches) -> None:
    old = sync.Sync.orders

    def orders(self: sync.Sync, term: int, coordinator: str, stall_seconds: float) -> Any:
        parents = {key: member.parent for key, member in self.members.items()}
        for member in self.members.values():
            member.parent = None
        made = old(self, term, coordinator, stall_seconds)
        for key, parent in parents.items():
            self.members[key].parent = parent
        return made

    p.set(sync.Sync, "orders", orders)


@relay_bug("an arena is granted while our own worker reads into it for the sync before")
def _grant_while_it_relays(p: Patches) -> None:
    def nothing(self: relaying.Relaying) -> Any:
        yield self.world.loop.sleep(0.001)

    p.set(relaying.Relaying, "end", nothing)
    table = dict(t.Target.table)
    state = t.TargetState
    table[state.PULLING, t.Ask] = (replace(t.Target.table[state.EMPTY, t.Ask][0]),)
    p.set(t.Target, "table", table)
    p.set(t.Target, "check_ask", lambda machine, request: None)


@relay_bug("what was read counts, and may be served, while the reading worker has not ended")
def _reader_outlives_its_relay(p: Patches) -> None:
    def over(self: relaying.Relaying, readers: list[joining.Reader], into: relaying.Into) -> Any:
        yield from into.target.end_pull(into.arena)
        for reader in readers:
            self.world.loop.at(1.0, reader.kill)

    p.set(relaying.Relaying, "_reads_no_more", over)


@relay_bug("an engine whose parent was taken out waits for it until the deadline")
def _orphans_wait(p: Patches) -> None:
    p.set(protocol, "orphans", lambda sync: [])


@relay_bug("an arena is read into by an order of the sync before")
def _relay_under_any_grant(p: Patches) -> None:
    def granted(self: ranks.RankTarget, grant: str) -> ranks.TargetArena:
        return self.arenas[0]

    def begin(self: ranks.RankTarget, grant: str) -> Any:
        yield self.world.loop.sleep(0.0)
        arena = self.arenas[0]
        held = arena.machine.grant
        if held is None or not arena.machine.takes(t.Relay(held.grant)):
            raise Refused("not now", reason="GrantClosed")
        arena.handle(t.Relay(held.grant))
        return arena

    p.set(ranks.RankTarget, "granted", granted)
    p.set(ranks.RankTarget, "begin_relay", begin)
    p.set(t.Target, "check_passing", lambda machine, grant, after: tuple(machine.verified.values())[after:])
