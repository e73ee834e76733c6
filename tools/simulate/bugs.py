"""Bugs of the protocol, one small change each, that a simulation must find. None of them is anybody's fault: yet.

Those whose moment is rare stand in rare_bugs.py, those of engines in Direct mode in direct_bugs.py, those of joins in
pull_bugs.py, those of engines of two pods in pair_bugs.py, those of relays in relay_bugs.py; all register them here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tools.simulate import coordination, look, rank_target, target_side, trainer, transfer, volume
from tools.simulate import world as worlds
from weightsync.errors import EngineError, Refused, TransferError
from weightsync.wire import v1
from weightsync_agent.engines.sequence import Step
from weightsync_agent.peers.client import Unreachable
from weightsync_agent.protocol import coordinator, engine_leader, events, fence, gather, replica, route, sync, target
from weightsync_agent.protocol.table import Machine
from weightsync_operator.planning import term


class Patches:
    """What was changed, to be undone."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an attribute; returns what was there."""
        old = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, old))
        return old.__func__ if isinstance(old, staticmethod) else old

    def effect(self, machine: type[Machine[Any]], old: Any, new: Any) -> None:
        """Let all rows of a table that do ``old`` do ``new``."""
        self.set(machine, "table", {
            key: tuple(replace(row, do=new) if row.do is old else row for row in rows)
            for key, rows in machine.table.items()
        })  # fmt: skip

    def undo(self) -> None:
        """As it was."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()


Patch = Callable[[Patches], None]


@dataclass(frozen=True)
class Bug:
    """sentence: what somebody did wrong; often: makes likely, in schedules, what it is about, and breaks nothing."""

    name: str
    sentence: str
    patch: Patch
    often: Patch
    patches: Patches = field(default_factory=Patches)
    aims: Patches = field(default_factory=Patches)

    def aim(self) -> None:
        """From here on schedules are those in which it shows."""
        self.often(self.aims)

    def install(self) -> None:
        """From here on the protocol is broken."""
        self.patch(self.patches)

    def mend(self) -> None:
        """From here on it is not."""
        self.patches.undo()

    def remove(self) -> None:
        """From here on all is as it was, schedules too."""
        self.mend()
        self.aims.undo()


BUGS: dict[str, Bug] = {}


def as_ever(patches: Patches) -> None:
    """Schedules are what they are."""


def bug(sentence: str, name: str = "", often: Patch = as_ever) -> Callable[[Patch], Patch]:
    """Register one; its name is the function's, where none is given."""

    def register(patch: Patch) -> Patch:
        known = name or patch.__name__.strip("_").replace("_", "-")
        BUGS[known] = Bug(known, sentence, patch, often)
        return patch

    return register


def bug_among(often: Patch) -> Callable[[str], Callable[[Patch], Patch]]:
    """As bug(); each of them in schedules in which ``often`` makes likely what it is about."""

    def among(sentence: str) -> Callable[[Patch], Patch]:
        return bug(sentence, often=often)

    return among


# --- the fence ---


@bug("a range is granted again while a writer of the old grant may still write")
def _drop_fence(p: Patches) -> None:
    p.set(target.Target, "quiet", lambda machine: True)


@bug("the fence unregisters the region and believes that this stops writers")
def _trust_unregister(p: Patches) -> None:
    def replaced(self: rank_target.RankTarget, fenced: rank_target.TargetArena) -> Any:
        yield self.agent.loop.sleep(0.001)
        fenced.handle(target.Fenced())

    p.set(rank_target.RankTarget, "_replace_worker", replaced)


@bug("an engine reads by itself into the arena that a sync has filled, and that its commit then applies")
def _read_into_the_sealed(p: Patches) -> None:
    def seal(self: rank_target.RankTarget, request: v1.CommitRequest) -> Any:
        grant = yield from old(self, request)
        yield from self.release(grant)
        return grant

    old = p.set(rank_target.RankTarget, "seal", seal)
    p.set(rank_target.RankTarget, "kept", property(lambda self: False))
    p.set(target.Target, "awaits_commit", lambda machine: False)
    p.set(target_side.EngineAgent, "_read_no_more", lambda self, why: iter(()))


@bug("a write that stalled counts as ended: its range is quiet")
def _timeout_is_quiet(p: Patches) -> None:
    p.set(
        transfer.Wires, "stalled", staticmethod(lambda call: TransferError("stalled", reason="Stalled", quiet=True))
    )


@bug("a worker that died has no byte on its way")
def _death_is_quiet(p: Patches) -> None:
    p.set(transfer.Wires, "gone", lambda wires, session: True)


@bug("a route sends its last receipt while a write is in flight")
def _last_receipt_early(p: Patches) -> None:
    old = route.Route._break

    def broken(machine: route.Route, reason: str, message: str) -> list[object]:
        machine.writing.clear()
        return old(machine, reason, message)

    p.set(route.Route, "_break", broken)


# --- digests ---


@bug("the target believes the writer's digests")
def _skip_digest(p: Patches) -> None:
    old = target.Target._landed
    p.effect(target.Target, old, lambda m, e, now: old(m, replace(e, computed=e.claimed), now))


def say_terminal(wires: transfer.Wires, call: transfer.WriteCall) -> None:
    """Tell the call's pieces as terminal while they are under way."""
    for piece in list(wires.flying.get(call.session, ())):
        if piece.call is call and piece.reads:
            wires._read(piece)
            wires._terminal(piece)


@bug("a bucket is receipted when its write was submitted")
def _receipt_before_landing(p: Patches) -> None:
    old = p.set(transfer.Wires, "write", None)

    def write(wires: transfer.Wires, call: transfer.WriteCall, bucket: Any) -> transfer.WriteCall:
        old(wires, call, bucket)
        say_terminal(wires, call)
        return call

    p.set(transfer.Wires, "write", write)


@bug("the arena is sealed without comparing anything with the decision")
def _seal_without_check(p: Patches) -> None:
    def check(machine: target.Target, request: Any) -> None:
        if machine.state is not target.TargetState.FILLING and machine.version != request.version:
            raise Refused("no", reason="GrantClosed")

    p.set(target.Target, "check_commit", check)
    routes_of = p.set(sync.Member, "routes", None)
    p.set(sync.Member, "routes", lambda member: set(sorted(routes_of(member))[:1]))  # and the coordinator is hasty


@bug("receipts of any grant count for the one that is open")
def _any_grant(p: Patches) -> None:
    p.set(rank_target.RankTarget, "granted", lambda self, grant: self.arenas[0])
    p.set(target.Target, "check_grant", lambda machine, grant, writer=None: machine.grant or _closed())
    p.set(target.Target, "current", lambda machine, grant: machine.grant is not None)


def _closed() -> Any:
    raise Refused("closed", reason="GrantClosed")


@bug("buckets are reported before they are filled")
def _filled_too_early(p: Patches) -> None:
    def publish(self: trainer.Trainer, arena: Any, bucket: int, step: int) -> None:
        self.loop.at(0.02, fill, self, arena, bucket, step)

    fill = p.set(trainer.Trainer, "_fill", publish)


# --- arenas of the source ---


@bug("a source's arena is filled anew while writes still read it")
def _reuse_arena_early(p: Patches) -> None:
    busy = (replica.ReplicaState.FILLING, replica.ReplicaState.FILLED)
    p.set(replica.Replica, "free", property(lambda self: self.state not in busy))


@bug("an arena that was filled is never given back")
def _keep_arena_for_ever(p: Patches) -> None:
    p.set(replica.Replica, "free", property(lambda self: self.state is replica.ReplicaState.EMPTY))


@bug("every stage writes every bucket")
def _stages_overlap(p: Patches) -> None:
    p.set(worlds.World, "owned", lambda world, stage: list(range(len(world.owners))))


# --- the commit ---


def without(*names: str) -> Patch:
    """A commit that lacks these steps."""

    def patch(p: Patches) -> None:
        steps = p.set(target_side, "commit_steps", None)

        def fewer(*arguments: Any, **options: Any) -> tuple[Step, ...]:
            return tuple(step for step in steps(*arguments, **options) if step.name not in names)

        p.set(target_side, "commit_steps", fewer)

    return patch


def _earlier(name: str, before: str) -> Patch:
    def patch(p: Patches) -> None:
        steps = p.set(target_side, "commit_steps", None)

        def moved(*arguments: Any, **options: Any) -> tuple[Step, ...]:
            found = [step for step in steps(*arguments, **options) if step.name != name]
            found.insert(found.index(Step[before]), Step[name])
            return tuple(found)

        p.set(target_side, "commit_steps", moved)

    return patch


bug("the engine is written to before the journal says Torn", "no-torn-journal")(without("JOURNAL_TORN"))
bug("the engine is written to while it serves", "no-pause")(without("PAUSE"))
bug("the engine goes on with a cache of the old weights", "no-flush")(without("FLUSH"))
bug("the engine is never told to go on", "no-continue")(without("CONTINUE"))
bug("the engine keeps the name of the old version", "no-name")(without("MARK_CURRENT"))
bug("the journal says Current before the bytes are there", "current-too-early")(_earlier("JOURNAL_CURRENT", "APPLY"))
bug("the engine goes on before its cache is flushed", "continue-before-flush")(_earlier("CONTINUE", "MARK_CURRENT"))


@bug("a step that failed counts as done")
def _failed_step_is_done(p: Patches) -> None:
    def run(self: target_side.EngineAgent, action: Any) -> Any:
        with suppress(EngineError):
            if self.context is not None:
                yield from self._run_step(action.step, self.context)
        self.feed(engine_leader.StepDone())

    p.set(target_side.EngineAgent, "_step", run)


@bug("after a failed commit the engine is resumed, to serve at least something")
def _resume_after_failure(p: Patches) -> None:
    def unpaused(self: target_side.EngineAgent) -> Any:
        yield self.engine.call(self.life, "resume")

    p.set(target_side.EngineAgent, "_keep_paused", unpaused)


@bug("a commit is answered when the bytes are applied, before the engine goes on")
def _answer_too_early(p: Patches) -> None:
    step = engine_leader.EngineLeader._step

    def early(machine: engine_leader.EngineLeader, event: Any, now: float) -> list[object]:
        done = machine.steps[machine.at]
        return step(machine, event, now) + ([engine_leader.AnswerCommit()] if done.name == "APPLY" else [])

    p.effect(engine_leader.EngineLeader, step, early)


@bug("an agent that restarts takes the engine for fresh, whatever the journal says")
def _forget_journal(p: Patches) -> None:
    p.set(look, "is_ours", lambda name: False)
    p.set(volume.Volume, "read", lambda self: None)


@bug("another process of the engine is taken for the one that was there")
def _ignore_another_life(p: Patches) -> None:
    p.set(engine_leader.EngineLeader, "expects", lambda machine, name, base: True)
    p.set(look.Look, "refs", _lifeless(p, look.Look, "refs"))


def _lifeless(p: Patches, owner: type, name: str) -> Any:
    refs = vars(owner)[name]
    return lambda self, grants, root: replace(refs(self, grants, root), life="")


# --- the coordinator ---


@bug("the decision is not on disk when the first commit goes out")
def _decide_without_persisting(p: Patches) -> None:
    def persist(self: coordination.Coordination, action: events.PersistDecision) -> Any:
        yield self.loop.sleep(0.001)
        self.feed(events.DecisionPersisted(action.sync))

    p.set(coordination.Coordination, "_persist", persist)


@bug("under Barrier an engine is committed as soon as it is staged itself")
def _no_barrier(p: Patches) -> None:
    p.set(sync.Sync, "each", property(lambda self: True))


@bug("one failed commit fails the version for all")
def _abort_after_decision(p: Patches) -> None:
    failed = coordinator.Coordinator._not_committed
    p.effect(coordinator.Coordinator, failed, lambda m, e, now: m._abort(e.reason, e.message, now))


@bug("a commit that was not answered counts as done")
def _silence_is_success(p: Patches) -> None:
    def send(self: coordination.Coordination, action: events.SendCommit) -> Any:
        key, request = action.engine.key, action.request
        try:
            answer = yield self.agent.call(action.engine.address, "/v1/commits", request, min(1.0, action.timeout))
        except Unreachable:
            life = action.engine.incarnation
            answer = v1.CommitAnswer(version=request.version.name, incarnation=life, pause_seconds=0, apply_seconds=0)
        except Refused as error:
            self.feed(events.CommitFailed(request.sync, key, error.reason, str(error), retryable=True))
            return
        self.world.ledger.current(action.engine.name, answer.incarnation, request.version.name)
        self.feed(events.CommitDone(request.sync, key, answer))

    p.set(coordination.Coordination, "_send_commit", send)


@bug("every engine of a snapshot is told to be current")
def _rosy_outcome(p: Patches) -> None:
    told = p.set(sync.Sync, "outcomes", None)

    def rosy(self: sync.Sync) -> Any:
        return tuple(each.model_copy(update={"outcome": "Current"}) for each in told(self))

    p.set(sync.Sync, "outcomes", rosy)


@bug("an engine that failed gets no outcome")
def _forget_outcome(p: Patches) -> None:
    told = p.set(sync.Sync, "outcomes", None)
    p.set(sync.Sync, "outcomes", lambda self: tuple(each for each in told(self) if each.outcome == "Current"))


@bug("publishes of two training steps are paired")
def _mix_steps(p: Patches) -> None:
    p.set(gather.Gather, "_late", lambda self: [])


@bug("an engine that a rank did not know when it published is fed all the same")
def _feed_the_unknown(p: Patches) -> None:
    p.set(gather.Gathered, "serves", lambda gathered, engine: True)


@bug("two syncs have the same name")
def _reuse_sync_id(p: Patches) -> None:
    start = p.set(coordinator.Coordinator, "_start", None)

    def same(machine: coordinator.Coordinator, *arguments: Any, **options: Any) -> Any:
        machine.count = 0
        return start(machine, *arguments, **options)

    p.set(coordinator.Coordinator, "_start", same)


# --- terms ---


@bug("what a coordinator asked for a sync that it has ended is done all the same, to the harm of its next one")
def _obey_ended_sync(p: Patches) -> None:
    p.set(fence.Fence, "over", lambda fence, sync: False)


@bug("another coordinator goes on in the same term")
def _two_coordinators_in_a_term(p: Patches) -> None:
    def check(self: fence.Fence, number: int, holder: str = "") -> None:
        return None

    p.set(term, "next_term", lambda previous, leader, nonce, now: previous.term if previous is not None else 1)
    p.set(fence.Fence, "check", check)


@bug("a WeightSync that is made anew counts its terms from 1")
def _count_terms_anew(p: Patches) -> None:
    rise = p.set(term, "next_term", None)

    def counted(previous: Any, leader: str, nonce: str, now: int) -> Any:
        return rise(previous, leader, nonce, 0)

    p.set(term, "next_term", counted)
