"""What the world looks at in a coordinator's actions: whether they keep invariants 10, 11 and 13."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.simulate import invariants as i
from tools.simulate.memory import digest
from weightsync.digests import program_root
from weightsync.version import version_name
from weightsync.wire.v1 import PublishOutcome
from weightsync_agent.protocol import events as e
from weightsync_agent.protocol.coordinator import COMMIT_GRACE, COMMIT_SECONDS
from weightsync_agent.protocol.gather import Gathered
from weightsync_agent.protocol.relaying import LOST
from weightsync_agent.protocol.sync import Member, MemberState, RouteKey, Sync

if TYPE_CHECKING:
    from tools.simulate.coordination import Coordination
    from tools.simulate.world import World

# What a coordinator finds by itself: nobody tells it.
OWN_REASONS = ("DeadlineExceeded", "HandshakeSlow", "CommitUnanswered", LOST)
SLACK = 3.0  # seconds: ticks, disk, messages


class Watch:
    """By sync: its snapshot, its start, its first commit."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.snapshots: dict[tuple[str, str], list[str]] = {}  # (life of the coordinator, version) -> engines
        self.fills: dict[tuple[str, str, int], frozenset[str]] = {}  # (writer, nonce, sequence) -> programs
        self.filled: dict[tuple[str, str], set[tuple[str, str]]] = {}  # (life, version) -> (writer, program)
        self.started: dict[str, float] = {}
        self.committing: set[str] = set()
        self.frozen_total = 0.0
        self.outcomes: dict[str, int] = {}
        self.said: dict[tuple[str, str], tuple[str, float]] = {}  # (sync, engine): what was told of it last, and when
        self.commit_at: dict[tuple[str, str], float] = {}  # (sync, engine): when its last commit was sent
        self.out: dict[tuple[str, str], float] = {}  # (sync, engine) -> when it was taken out
        self.answered: dict[tuple[str, str], set[str]] = {}  # (life of the coordinator, version) -> engines
        self.given_up: set[tuple[str, str]] = set()  # (life of the coordinator, version)
        self.done: dict[tuple[str, str], set[RouteKey]] = {}  # (sync, engine): routes that were told as verified

    def told(self, sync: Sync, event: object) -> None:
        """What the coordinator is told of members of its sync before it handles it."""
        match event:
            case e.GrantRefused() | e.CommitFailed() if event.sync == sync.id:
                keys = [event.engine]
            case e.RelayEnded() if event.sync == sync.id and not event.end.lost:
                member = sync.members.get(event.engine)
                keys = [event.engine] if member is not None and member.turn == event.turn else []
                if event.end.verified:
                    self._is_done(sync, keys)
                    return
            case e.OrderRefused() if event.sync == sync.id:
                keys = [key for key, member in sync.members.items() if _fed_by(member, event.writer.key)]
            case e.RouteEnded() if event.end.sync == sync.id:
                end = event.end
                keys = [key for key, member in sync.members.items() if _granted(member, end.grant)]
                if end.verified:
                    self._is_done(sync, keys, {(end.target, end.rank, end.writer.key)})
                    return
            case _:
                return
        for key in keys:
            member = sync.members.get(key)
            if member is not None and member.live:
                self.said[sync.id, key] = (type(event).__name__, self.world.loop.now)

    def handled(self, sync: Sync) -> None:
        """When its members went out."""
        for key, member in sync.members.items():
            if not member.live:
                self.out.setdefault((sync.id, key), self.world.loop.now)

    def _is_done(self, sync: Sync, keys: list[str], routes: set[RouteKey] | None = None) -> None:
        """These routes of the members, or all, were verified while somebody waited for them."""
        for key in keys:
            if sync.members[key].live:
                self.done.setdefault((sync.id, key), set()).update(routes or sync.members[key].routes())

    def decides(self, coordination: Coordination, action: e.PersistDecision) -> None:
        """Whether a decision speaks of the bytes that were published, and may be made."""
        name, world = action.version.name, self.world
        i.not_ended_before(name, ended=(coordination.life, name) in self.given_up)
        content = (world.ledger.steps[name],) * world.pieces
        roots = {
            program: program_root(digest(program, bucket, content) for bucket in range(len(world.owners)))
            for program in action.programs
        }
        i.decided_as_it_is(name, [program for program, root in action.programs.items() if root != roots[program]])

    def sync_ends(self, sync: Sync) -> None:
        """Whether the reasons of its outcomes are the true ones."""
        if sync.error[0] == "RanksDiffer":
            name = version_name(sync.lineage, sync.number)
            i.really_differ(name, self.world.ledger.steps.get(name, -1))
        for key, member in sync.members.items():
            name, at = self.said.pop((sync.id, key), ("", 0.0))
            done = self.done.pop((sync.id, key), set())
            reason = member.outcome.reason if member.outcome is not None else ""
            failed = member.outcome is not None and member.outcome.outcome == "Failed"
            if failed and reason not in (*OWN_REASONS, sync.error[0]):
                i.somebody_said_so(member.engine.name, reason, told=bool(name))
            if reason == "DeadlineExceeded" and done:
                i.late_for_a_reason(member.engine.name, len(member.routes() - done))
            if reason == "DeadlineExceeded" and name != "CommitFailed":
                i.true_reason(member.engine.name, reason, name)
            if reason == "DeadlineExceeded" and member.parent is not None:
                above = sync.members[member.parent].outcome
                since = self.out[sync.id, key] - self.out.get((sync.id, member.parent), self.world.loop.now)
                why = above.reason if above is not None and since > self.world.stall_seconds else ""
                i.another_parent(member.engine.name, why)
            if (
                reason == "CommitUnanswered"
                and name == "CommitFailed"
                and at > self.commit_at.get((sync.id, key), at)
            ):
                i.true_reason(member.engine.name, reason, name)

    def sync_begins(self, coordination: Coordination, sync: Sync) -> None:
        """A sync has begun; its members are pinned."""
        if sync.id in self.started:
            return
        self.started[sync.id] = self.world.loop.now
        if sync.repair is None:
            key = (coordination.life, version_name(sync.lineage, sync.number))
            self.snapshots[key] = [member.engine.name for member in sync.members.values()]
            for member in sync.members.values():
                i.filled_for(key[1], member.engine.name, self._unfilled(key, member))

    def gathered(self, coordination: Coordination, name: str, gathered: Gathered) -> None:
        """All ranks are there, each with what it fills."""
        self.filled[coordination.life, name] = {
            (request.writer.key, program)
            for request in gathered.ranks.values()
            for program in self.fills[request.writer.key, request.nonce, request.sequence]
        }

    def _unfilled(self, key: tuple[str, str], member: Member) -> list[str]:
        wanted = {
            (f"{route.source}/{route.rank}", target.rank.program)
            for target in member.engine.targets
            for route in target.routes
        }
        return sorted(writer for writer, _ in wanted - self.filled[key])

    def commit_sent(self, coordination: Coordination, action: e.SendCommit) -> None:
        """A commit goes out."""
        machine, request = coordination.machine, action.request
        self.commit_at[request.sync, action.engine.key] = self.world.loop.now
        decision = coordination.agent.pod.volume.decision
        i.decided_first(request.version.name, decision.version.name if decision else "")
        self.world.ledger.roots.setdefault(request.version.name, request.version.root)
        i.one_root(request.version.name, request.version.root, self.world.ledger.roots[request.version.name])
        sync = machine.sync
        if request.sync in self.committing or sync is None or sync.id != request.sync:
            return
        self.committing.add(request.sync)
        strategy = sync.plan.strategy
        if strategy.type == "Barrier" and sync.repair is None:
            ready = (MemberState.STAGED, MemberState.COMMITTING, MemberState.CURRENT)
            unready = [m.engine.name for m in sync.live() if m.state not in ready]
            i.all_staged(request.version.name, unready)
        if not self.world.slept(self.started[sync.id]):
            limit = strategy.deadline_seconds + SLACK
            i.commits_by(request.version.name, self.world.loop.now - self.started[sync.id], limit)

    def commit_answered(self, coordination: Coordination, event: e.CommitDone) -> None:
        """An engine answered its commit, in time and in the life that was meant."""
        sync = coordination.machine.sync
        member = sync.members.get(event.engine) if sync is not None and sync.id == event.sync else None
        if member is None or not member.live or event.answer.incarnation != member.engine.incarnation:
            return
        key = (coordination.life, event.answer.version)
        self.answered.setdefault(key, set()).add(member.engine.name)

    def outcome(self, coordination: Coordination, name: str, outcome: PublishOutcome) -> None:
        """A publish has ended."""
        key = (coordination.life, name)
        snapshot = self.snapshots.get(key)
        if outcome.version is None and outcome.reason:
            self.given_up.add(key)
            i.not_aborted(name, name in self.world.ledger.committed, outcome.reason)
        if snapshot is not None:
            i.one_outcome_each(name, snapshot, [each.engine for each in outcome.engines])
        began = coordination.began.get(name)
        if began is not None and not self.world.slept(began):
            deadline = self.world.deadline_seconds
            # One sync may run before, and one that was decided in it.
            i.in_time(name, self.world.loop.now - began, 3 * (deadline + COMMIT_SECONDS + COMMIT_GRACE + SLACK))
        for each in outcome.engines:
            if each.engine in self.answered.get(key, ()) and each.outcome != "Gone":
                i.told_of(each.engine, name, each.outcome)
            if each.outcome == "Current":
                lives = self.world.ledger.served.items()
                i.honest(each.engine, name, any(key.startswith(f"{each.engine}/") and name in s for key, s in lives))
            self.outcomes[each.outcome] = self.outcomes.get(each.outcome, 0) + 1


def _fed_by(member: Member, writer: str) -> bool:
    """The member waits for a route of that writer."""
    return any(key[2] == writer for key in member.pending)


def _granted(member: Member, grant: str) -> bool:
    """The member's sync goes under that grant."""
    return any(each.grant == grant for each in member.grants.values())
