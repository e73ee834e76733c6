"""What the world looks at in a source's actions: its arenas' bytes, its workers, its answers to orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tools.simulate import source_invariants as i
from tools.simulate.invariants import term_holds
from tools.simulate.memory import Content, digest, number_of
from weightsync.arena import ArenaState
from weightsync.digests import BucketDigest
from weightsync.version import Version
from weightsync_agent.protocol import route as r
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.replica import Replica, ReplicaState

if TYPE_CHECKING:
    from tools.simulate.source_rank import SourceRank


class SourceWatch:
    """One rank's."""

    def __init__(self, rank: SourceRank) -> None:
        self.rank = rank
        self.given_up: dict[int, float] = {}  # by lane: since when no new piece goes through it
        self.filled_for: dict[s.ReplicaId, str] = {}  # the publish

    def fed(self, event: object) -> None:
        """An event for the machine."""
        if isinstance(event, s.RouteStalled | s.LaneHeld):
            self.given_up.setdefault(event.lane, self.rank.loop.now)

    def taken(self, event: object) -> None:
        """The machine has taken an event: what was compared can be ordered only if it is what was found."""
        if isinstance(event, s.Compared) and event.replica in self.rank.arenas:
            content = self.rank.arenas[event.replica].content
            for each in self.rank.machine.shelf.replicas.get(event.replica.program, ()):
                ordered = each.state in (ReplicaState.SPENT, ReplicaState.SEALED)
                if each.id == event.replica and ordered:
                    self._as_digested(self.rank.name, each.id.program, content, each.ordered_bytes)

    @staticmethod
    def _as_digested(where: str, program: str, content: Sequence[Content], buckets: Sequence[BucketDigest]) -> None:
        found = {b.offset: digest(program, number_of(b.offset), content[number_of(b.offset)]) for b in buckets}
        i.as_digested(where, [b.offset for b in buckets if found[b.offset] != b])

    def rests(self) -> None:
        """All events were taken: an order is answered, or it is the one that waits."""
        pending = self.rank.machine.pending
        waits = pending.order.sync if pending is not None else ""
        i.answered(self.rank.name, [sync for sync in self.rank.orders if sync != waits])

    def acts(self, action: object) -> None:
        """Before an action is done."""
        match action:
            case s.Seal(replica, version):
                self._seals(replica, version)
            case s.FeedRoute(route, r.Filled(buckets)) if route in self.rank.runners:
                runner = self.rank.runners[route]
                self._as_digested(runner.name, runner.planned.program, runner.arena.content, buckets)
            case s.KillLane(lane):
                self._ends(lane)
            case s.Fill(publish, replica):
                self._fills(replica, publish)
            case s.RefuseOrder(sync, "OrderOver"):
                rank = self.rank
                known = sync in rank.ended or rank.machine.admission.fence.over(sync)
                i.ended_before(rank.name, sync, known=known)
                i.never_started(rank.name, sync, started=sync in rank.started)
            case s.TakeOrder(sync):
                term, _ = self.rank.ordered.get(sync, (0, ""))
                term_holds(self.rank.name, "an order", term, self.rank.machine.admission.fence.term)

    def _seals(self, replica: s.ReplicaId, version: Version) -> None:
        rank, world = self.rank, self.rank.world
        content = [rank.arenas[replica].content[bucket] for bucket in world.owned(rank.who.stage)]
        i.sealed_as_it_is(rank.name, version.name, content, world.ledger.steps.get(version.name))

    def _ends(self, lane: int) -> None:
        """Writes that have not stalled are waited for, but no longer than a stall timeout."""
        rank = self.rank
        others = [
            runner.name
            for runner in rank.runners.values()
            if not runner.over
            and lane not in runner.open
            and any(n == lane and call.open for n, call in runner.calls)
        ]
        seconds = rank.loop.now - self.given_up.get(lane, rank.loop.now)
        i.spares_the_others(rank.name, lane, others, seconds, rank.world.stall_seconds)

    def _fills(self, replica: s.ReplicaId, publish: str) -> None:
        """Of the arenas that nobody needs the newest sealed one comes last."""
        rank = self.rank
        self.filled_for[replica] = publish
        if replica not in rank.arenas:
            return
        header = rank.arenas[replica].header
        if header.state is ArenaState.SEALED and header.version is not None:
            held = (each for each in rank.machine.shelf.replicas.get(replica.program, ()) if each.id != replica)
            idle = [rank.arenas[each.id].name for each in held if each.id in rank.arenas and self._idle(each)]
            i.keeps_the_last(rank.name, header.version.name, idle)

    def _idle(self, replica: Replica) -> bool:
        """It was filled for a publish that has ended undecided, and nobody reads it."""
        publish = self.rank.publishes.get(self.filled_for.get(replica.id, ""))
        over = publish is not None and publish.copied and publish.ended
        return over and not replica.readers and self.rank.arenas[replica.id].header.state is not ArenaState.SEALED
