"""Bugs on purpose of engines that read a version from other engines; in their schedules engines come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tools.simulate import faults as f
from tools.simulate import joining, target_side
from tools.simulate import rank_target as ranks
from tools.simulate import world as worlds
from tools.simulate.bugs import Patches, bug_among
from tools.simulate.direct_bugs import BUGS
from tools.simulate.rare_bugs import ambushed
from weightsync.digests import program_root, version_root
from weightsync.errors import Refused
from weightsync.version import Version
from weightsync.wire import v1
from weightsync_agent.protocol import holders, joiner, lending, readers
from weightsync_agent.protocol import target as t
from weightsync_operator.planning import compose

__all__ = ["BUGS"]  # all: the others', too

OFTEN = ("engine added", "trainers away", f.AMBUSH, "engine call fails", "engine call half done")


@bug_among
def pull_bug(p: Patches) -> None:
    """Engines come late, and what disturbs joins is frequent."""
    weights = {kind: weight * (10 if kind in OFTEN else 1) for kind, weight in f.WEIGHTS.items()}
    p.set(f, "WEIGHTS", weights)
    p.set(worlds, "LATE_COMERS", 1.0)


@pull_bug("a joiner believes the holder's digests")
def _pull_without_verifying(p: Patches) -> None:
    old = p.set(ranks.RankTarget, "pulled", None)
    p.set(ranks.RankTarget, "pulled", lambda self, pulled, computed, claimed: old(self, pulled, claimed, claimed))
    p.set(joining, "SPOILT", 0.02)


@pull_bug("engines neither come into the plan nor leave it while the trainer is away: nobody knows whom to read from")
def _frozen_while_away(p: Patches) -> None:
    p.set(compose, "_feeds_all", lambda pods: False)


@pull_bug("a joiner's reading worker goes on after the pull has ended")
def _reader_outlives_its_pull(p: Patches) -> None:
    def kill(self: joining.Reader) -> None:
        self.world.loop.at(1.0, self._end)
        self.dead.set()

    p.set(joining.Reader, "kill", kill)


@pull_bug("what was verified counts although the arena was written to since")
def _keep_verified_for_ever(p: Patches) -> None:
    old = t.Target._pull

    def kept(machine: t.Target, event: t.Pull, now: float) -> list[object]:
        verified = machine.verified
        actions = old(machine, event, now)
        machine.verified = verified
        return actions

    p.effect(t.Target, old, kept)
    rest = t.Target._begin
    p.set(t.Target, "_begin", _keeping(rest))


def _keeping(begin: Any) -> Any:
    def kept(machine: t.Target, grant: Any) -> Any:
        verified = machine.verified
        actions = begin(machine, grant)
        machine.verified = verified
        return actions

    return kept


@pull_bug("a holder lends an arena that is being filled, once all of it is there: nobody has decided it")
def _lend_while_filling(p: Patches) -> None:
    def held(self: joining.Holding) -> v1.Held:
        decided = _filled(self.agent)
        return v1.Held(uid=self.agent.pod.uid, decided=decided, most=2 if decided is not None else 0)

    def lease(self: joining.Holding, request: v1.LeaseRequest) -> Any:
        self.agent.decided = _filled(self.agent) or self.agent.decided
        return old(self, request)

    old = p.set(joining.Holding, "lease", None)
    p.set(joining.Holding, "lease", lease)
    p.set(joining.Holding, "held", held)
    p.set(lending.Lending, "whole", lambda self, version: bool(self._engine.ranks))
    p.set(ranks.RankTarget, "lendable", lambda self, version: self.arenas[0])
    p.set(joiner, "goal", lambda own, offers, said, **more: holders.newest(offers))


def _filled(agent: target_side.EngineAgent) -> v1.Decided | None:
    """What all ranks have verified, decided or not."""
    machines = [target.arenas[0].machine for target in agent.targets.values()]
    if not machines or any(m.grant is None or m.missing() for m in machines):
        return None
    grant = machines[0].grant
    programs = {m.program: program_root(m.verified.values()) for m in machines}
    if grant is None:
        return None
    root = version_root(grant.lineage, grant.number, programs)
    version = Version(lineage=grant.lineage, number=grant.number, root=root)
    return v1.Decided(version=version, term=grant.term, programs=programs)


@pull_bug("an arena is granted while our own worker reads into it")
def _grant_while_it_reads(p: Patches) -> None:
    def nothing(self: joining.Joining, why: str) -> Any:
        yield self.world.loop.sleep(0.001)

    p.set(joining.Joining, "end", nothing)
    table = dict(t.Target.table)
    state = t.TargetState
    table[state.PULLING, t.Ask] = (replace(t.Target.table[state.EMPTY, t.Ask][0]),)
    p.set(t.Target, "table", table)
    p.set(t.Target, "check_ask", lambda machine, request: None)


@pull_bug("what a holder has verified of what it reads itself counts here, too, and is not read")
def _grow_without_reading(p: Patches) -> None:
    old = p.set(joining.Joining, "_read", None)

    def read(self: joining.Joining, reader: Any, into: Any, held: v1.HeldRank, buckets: Any) -> Any:
        if not held.grant:
            yield from old(self, reader, into, held, buckets)
            return
        target, arena = into
        for bucket in buckets:
            yield from target.pulled(arena, bucket, bucket)

    p.set(joining.Joining, "_read", read)


@bug_among
def lease_bug(p: Patches) -> None:
    """Many come at once and read from one another, and one of them, or whom it reads from, stops in the middle."""
    p.set(worlds, "LATE_COMERS", 1.0)
    p.set(worlds.World, "joins_together", True)
    ambushed(f"a joiner: {joiner.JoinerState.PULLING.value}")(p)


@lease_bug("a lease lasts for ever once it was given: who falls silent keeps its place")
def _lease_without_end(p: Patches) -> None:
    old = p.set(readers.Readers, "admit", None)

    def admit(self: readers.Readers, reader: str, now: float) -> float:
        seconds = float(old(self, reader, now))
        self._until[reader] = now + 1e9
        return seconds

    p.set(readers.Readers, "admit", admit)


@lease_bug("who asks again is another reader: its place is asked for anew, and there may be none")
def _renewal_needs_a_place(p: Patches) -> None:
    old = p.set(readers.Readers, "admit", None)

    def admit(self: readers.Readers, reader: str, now: float) -> float:
        until, self._until = self._until, {f"{each} before": until for each, until in self._until.items()}
        try:
            return float(old(self, reader, now))
        except Refused:
            self._until = until
            raise

    p.set(readers.Readers, "admit", admit)


@lease_bug("who reads is sent away when its holder goes over to the next version, which lies in another arena")
def _send_readers_away(p: Patches) -> None:
    old = p.set(lending.Lending, "lease", None)

    def lease(self: lending.Lending, request: v1.LeaseRequest, now: float) -> v1.Lease:
        self._lent.clear()
        return old(self, request, now)  # type: ignore[no-any-return]

    p.set(lending.Lending, "lease", lease)
