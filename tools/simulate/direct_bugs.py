"""Bugs on purpose of engines that are written to themselves; all engines of their schedules are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tools.simulate import direct_rank, source_rank, target_side, transfer
from tools.simulate import world as worlds
from tools.simulate.bugs import Patches, bug_among, say_terminal
from tools.simulate.clock import Work
from tools.simulate.rare_bugs import BUGS, ambushed
from weightsync_agent.engines.sequence import OPEN_STEPS, Step
from weightsync_agent.protocol import direct
from weightsync_agent.protocol import target as t

__all__ = ["BUGS"]  # all: the others', too


class _Always:
    """Draws what makes every engine a direct one."""

    @staticmethod
    def random() -> float:
        """The lowest."""
        return 0.0


def _all_direct(p: Patches) -> None:
    """Every engine is written to directly."""
    p.set(worlds.World, "shape_of", lambda world, engine: _Always())


direct_bug = bug_among(_all_direct)


@direct_bug("writers are let into the engine's memory before it is paused")
def _direct_grant_before_pause(p: Patches) -> None:
    p.set(target_side, "OPEN_STEPS", tuple(s for s in OPEN_STEPS if s is not Step.PAUSE))


@direct_bug("writers are let into the engine's memory before the journal says Torn")
def _direct_grant_before_journal(p: Patches) -> None:
    p.set(target_side, "OPEN_STEPS", OPEN_STEPS[1:])


@direct_bug("what stands in the engine is compared before its writes are over")
def _direct_verify_before_terminal(p: Patches) -> None:
    old = p.set(transfer.Wires, "write", None)

    def write(wires: transfer.Wires, call: transfer.WriteCall, bucket: Any) -> transfer.WriteCall:
        old(wires, call, bucket)
        old(wires, call, bucket)
        say_terminal(wires, call)
        return call

    p.set(transfer.Wires, "write", write)


@direct_bug("an engine goes on when a writer gives up, with what it has")
def _direct_continue_while_open(p: Patches) -> None:
    old = p.set(direct_rank.DirectRank, "_last", None)

    def resume(rank: direct_rank.DirectRank) -> Work:
        yield rank.agent.engine.call(rank.agent.life, "resume")

    def last(self: direct_rank.DirectRank, event: t.LastReceipt) -> None:
        old(self, event)
        if event.failed:
            self.agent.spawn(resume(self))

    p.set(direct_rank.DirectRank, "_last", last)


@direct_bug("others are let into the engine's memory while a writer of the last grant may still write")
def _direct_regrant_while_open(p: Patches) -> None:
    key = (direct.DirectState.OPEN, t.Ask)
    table = direct.DirectTarget.table
    p.set(direct.DirectTarget, "table", {**table, key: (replace(table[key][0], guard=None),)})


@direct_bug("the table of an engine that has restarted is still trusted")
def _direct_trust_old_table(p: Patches) -> None:
    old = p.set(direct_rank.DirectRank, "open", None)

    def first(self: direct_rank.DirectRank, session: str) -> Work:
        yield from old(self, self.session or session)

    def same(self: direct_rank.DirectRank) -> Work:
        yield self.agent.loop.sleep(0.001)

    p.set(direct_rank.DirectRank, "open", first)
    p.set(direct_rank.DirectRank, "check_life", same)


@bug_among
def restart_bug(p: Patches) -> None:
    """Also, agents of engines that are written to die, and come again."""
    _all_direct(p)
    ambushed("a route that is given up while its shard fills")(p)


@restart_bug("an agent that restarts forgets whom it let into its engine's memory")
def _direct_forget_writers(p: Patches) -> None:
    def nobody(self: direct_rank.DirectRank, *writers: Any) -> Work:
        yield self.agent.loop.sleep(0.001)

    p.set(direct_rank.DirectRank, "restore", nobody)
    p.set(direct_rank.DirectRank, "restore_anybody", nobody)


@direct_bug("a writer's agent's word is enough, though bytes of it are on their way")
def _direct_word_is_enough(p: Patches) -> None:
    def over(self: direct_rank.DirectRank, grant: str, key: str) -> Work:
        said = yield self._ask(self.addresses.get(key.rpartition("/")[0], ""), grant)
        return said.quiet

    p.set(direct_rank.DirectRank, "_over", over)


@bug_among
def quiet_bug(p: Patches) -> None:
    """Also, writers are still waited for when the next grant is asked for."""
    _all_direct(p)
    ambushed("an engine whose memory is written to")(p)


@quiet_bug("a source says that it is quiet, and goes on")
def _direct_broken_promise(p: Patches) -> None:
    p.set(source_rank.SourceRank, "quiet", lambda rank, grant, session: True)
