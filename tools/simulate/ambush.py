"""Faults that wait for a rare moment: a machine in a state, and then what seldom meets it there.

Nothing here does what a network, a disk, a worker or a peer cannot do: what was heard before is heard again, a
worker dies, a call fails. Only the moment is chosen. So that the moment comes, each of them also slows something
down: answers, worker starts, a trainer, a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tools.simulate.clock import Future
from weightsync.wire import v1
from weightsync_agent.protocol import engine_leader as m
from weightsync_agent.protocol import events as e
from weightsync_agent.protocol import route as r
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol import target as t
from weightsync_agent.protocol.coordinator import Coordinator, CoordinatorState
from weightsync_agent.protocol.replica import ReplicaState
from weightsync_agent.protocol.source import Source, SourceState
from weightsync_agent.protocol.table import Machine

if TYPE_CHECKING:
    from tools.simulate.pods import EnginePod
    from tools.simulate.routes import RouteRunner
    from tools.simulate.source_rank import SourceRank
    from tools.simulate.world import World

MOST = 6  # times that one of them springs

AnyMachine = Machine[Any]
Moment = Callable[[AnyMachine], bool]
Spring = Callable[["World", AnyMachine, float], None]
Prepare = Callable[["World", float], None]


@dataclass(frozen=True)
class Kind:
    """moment: of a machine, after each of its events; springs: one of them meets it.

    prepare, and the fault of that name that strikes beside it, make the moment likely.
    """

    name: str
    moment: Moment
    springs: tuple[Spring, ...]
    prepare: Prepare | None = None
    beside: str = ""


class Ambush:
    """One that waits."""

    def __init__(self, world: World, kind: Kind) -> None:
        self.world = world
        self.kind = kind
        self.left = MOST

    def after(self, machine: AnyMachine) -> None:
        """The machine has taken an event."""
        if self.left and self.kind.moment(machine):
            self.left -= 1
            # At once, after what is under way, or a moment later.
            delay = (0.0, 0.0, 0.002, 0.03)[self.world.rng.randrange(4)]
            self.world.loop.at(delay, self._spring, machine)

    def _spring(self, machine: AnyMachine) -> bool:
        if not self.kind.moment(machine):
            self.left += 1
            return False
        self.world.loop.note("ambush", self.kind.name)
        self.world.sprung.append(self.kind.name)
        self.world.rng.choice(self.kind.springs)(self.world, machine, self.world.rng.random())
        return True


# --- who is behind a machine ---


def ranks(world: World) -> Iterator[SourceRank]:
    """Of all agents that live."""
    for pod in world.source_pods:
        if pod.agent.life.alive:
            yield from pod.agent.ranks.values()


def _rank(world: World, machine: AnyMachine) -> SourceRank | None:
    return next((rank for rank in ranks(world) if rank.machine is machine), None)


def _pod(world: World, machine: AnyMachine) -> EnginePod | None:
    for pod in world.engine_pods:
        machines: list[AnyMachine] = [pod.agent.machine]
        machines += [arena.machine for target in pod.agent.targets.values() for arena in target.arenas]
        if pod.agent.life.alive and any(each is machine for each in machines):
            return pod
    return None


def _route(world: World, machine: AnyMachine) -> tuple[SourceRank, RouteRunner] | None:
    for rank in ranks(world):
        for runner in rank.runners.values():
            if runner.machine is machine:
                return rank, runner
    return None


# --- at a source ---


def _source_in(*states: SourceState) -> Moment:
    return lambda machine: isinstance(machine, Source) and machine.state in states


def _once_it_ends(spring: Spring) -> Spring:
    """A running order is given up; what meets the source comes after that."""

    def either(world: World, machine: AnyMachine, pick: float) -> None:
        (_given_up if machine.state is SourceState.RUNNING else spring)(world, machine, pick)

    return either


def _heard_again(kind: type) -> Spring:
    """What came before comes again: repeated by a caller that got no answer, or long under way."""

    def spring(world: World, machine: AnyMachine, pick: float) -> None:
        rank = _rank(world, machine)
        heard = rank.heard.get(kind) if rank is not None else None
        if rank is not None and heard:
            rank.feed(heard[-1 if pick < 0.4 else int(pick * len(heard))])

    return spring


def _first_again(kind: type) -> Spring:
    """The first of all: of a term that is over, where there was another since."""

    def spring(world: World, machine: AnyMachine, pick: float) -> None:
        rank = _rank(world, machine)
        if rank is not None and rank.heard.get(kind):
            rank.feed(rank.heard[kind][0])

    return spring


def _given_up(world: World, machine: AnyMachine, pick: float) -> None:
    """Another rank's input was wrong, so the coordinator ends the order; and its writes take their time to end."""
    rank = _rank(world, machine)
    running = rank.machine.running if rank is not None else None
    if running is None:
        return
    for planned in running.order.routes:
        world.wires.stalls[planned.region.session] = world.loop.now + 0.2 + pick
    for pod in world.source_pods:
        sync = pod.agent.coordination.machine.sync
        if pod.agent.life.alive and sync is not None and sync.id == running.order.sync and sync.repair is None:
            pod.agent.coordination.feed(e.PublishBroken(sync.lineage, sync.number, "InputRaised", "another rank's"))


def _another_coordinates(world: World, machine: AnyMachine, pick: float) -> None:
    """Or, where there is no other, the same in another term."""
    planner = world.planner
    if planner.plan is None or len(world.source_pods) < 2:
        planner.delete()
        world.loop.at(0.02, planner.make)
        return
    planner.shun(planner.plan.coordinator)
    world.loop.at(1.0 + pick, planner.shunned.clear)


def _lane_held(world: World, machine: AnyMachine, pick: float) -> None:
    """Some worker of it takes no write: whoever digests meets that, too."""
    rank = _rank(world, machine)
    if rank is not None:
        lanes = sorted(rank.machine.lanes.lanes)
        rank.feed(s.LaneHeld(lanes[int(pick * len(lanes))]))


def _no_room(world: World, machine: AnyMachine, pick: float) -> None:
    world.chances["no room"] = 1.0
    world.loop.at(0.5 + 2 * pick, world.chances.pop, "no room", None)


def _worker_dies(world: World, machine: AnyMachine, pick: float) -> None:
    rank = _rank(world, machine)
    if rank is not None:
        rank.agent.kill_worker(pick)


def _input_wrong(world: World, machine: AnyMachine, pick: float) -> None:
    """One of its publishes turns out to be broken."""
    rank = _rank(world, machine)
    open_ = [p for p in rank.publishes.values() if p.trouble is None and not p.copied] if rank is not None else []
    if rank is not None and open_:
        rank.broken(open_[int(pick * len(open_))].id, "InputRaised", "the trainer's input raised")


def _fills(machine: AnyMachine) -> bool:
    return isinstance(machine, Source) and any(r.state is ReplicaState.FILLING for r in machine.shelf.all())


def _two_sealed(machine: AnyMachine) -> bool:
    if not isinstance(machine, Source):
        return False
    held = machine.shelf.replicas.values()
    return any([r.state for r in each].count(ReplicaState.SEALED) > 1 for each in held)


def _agent_dies(world: World, machine: AnyMachine, pick: float) -> None:
    rank = _rank(world, machine)
    if rank is not None:
        rank.agent.pod.crash_agent()
        world.loop.at(0.1 + pick, rank.agent.pod.start_agent)


# --- while a route runs ---


def _route_that(holds: Callable[[r.Route], bool]) -> Moment:
    return lambda machine: isinstance(machine, r.Route) and holds(machine)


def _order_ends(world: World, machine: AnyMachine, pick: float) -> None:
    """Its coordinator gives the sync up; now and then as the worker dies."""
    found = _route(world, machine)
    if found is not None:
        rank, runner = found
        order = runner.order
        if pick < 0.7:
            _lane_dies(world, machine, pick)
        # Behind the worker's last words, and before they are heard.
        turn = Future(world.loop)
        turn.set()
        turn.then(lambda _: rank.feed(s.Ended(order.sync, order.term, order.coordinator)))


def _lane_dies(world: World, machine: AnyMachine, pick: float) -> None:
    """The worker that it writes through; now and then the one that it writes to as well."""
    found = _route(world, machine)
    if found is None:
        return
    rank, runner = found
    receiver = world.wires.sessions.get(runner.planned.region.session)
    if pick < 0.3 and receiver is not None:
        receiver.kill()
    worker = rank.workers.get(runner.lane)
    if worker is not None:
        worker.kill()


def _receiver_dies(world: World, machine: AnyMachine, pick: float) -> None:
    """Receipts are refused at once, and its writes fail one after the other."""
    found = _route(world, machine)
    receiver = world.wires.sessions.get(found[1].planned.region.session) if found is not None else None
    if receiver is not None:
        receiver.kill()


def _receipts_refused(world: World, machine: AnyMachine, pick: float) -> None:
    """A newer coordinator has spoken to the target, and not yet to the source."""
    found = _route(world, machine)
    plan = world.planner.plan
    if found is None or plan is None:
        return
    host = world.network.hosts.get(found[1].planned.address)
    if host is not None and host.life.alive:
        world.network.refuse = (host, "/v1/receipts")
        world.loop.at(0.05, setattr, world.network, "refuse", None)


# --- at an engine ---


def _coordinator_in(state: CoordinatorState) -> Moment:
    return lambda machine: isinstance(machine, Coordinator) and machine.state is state


def _leader_in(state: m.LeaderState) -> Moment:
    return lambda machine: isinstance(machine, m.EngineLeader) and machine.state is state


def _target_in(state: t.TargetState) -> Moment:
    return lambda machine: isinstance(machine, t.Target) and machine.state is state


def _falls_silent(world: World, machine: AnyMachine, pick: float) -> None:
    pod = _pod(world, machine)
    if pod is not None:
        pod.engine.fail_calls.appendleft(("pause" if pick < 0.6 else "name", False))
        world.loop.at(0.02, _silence, pod, world.loop.now + 2.5 + 2 * pick)


def _silence(pod: EnginePod, until: float) -> None:
    pod.engine.silent_until = max(pod.engine.silent_until, until)


def _process_replaced(world: World, machine: AnyMachine, pick: float) -> None:
    """Faster than its agent looks; a pause that was under way failed with the old one."""
    pod = _pod(world, machine)
    if pod is None or not pod.engine.alive:
        return
    for _ in range(5):
        pod.engine.fail_calls.appendleft(("pause", False))
    world.loop.at(0.02, _replace, pod)
    world.loop.at(3.0, pod.engine.fail_calls.clear)


def _replace(pod: EnginePod) -> None:
    if pod.engine.alive:
        pod.engine.end_life()
        pod.start_engine()


def _welcome_again(world: World, machine: AnyMachine, pick: float) -> None:
    """Sent before anything was published, and long under way."""
    pod = _pod(world, machine)
    if pod is not None and pod.agent.fence.term:
        body = v1.Welcome(term=pod.agent.fence.term, coordinator=pod.agent.fence.coordinator, initial_gate="Open")
        world.network.deliver(pod.address, "/v1/welcome", body)


def _no_worker_starts(world: World, machine: AnyMachine, pick: float) -> None:
    world.chances["worker start fails"] = 1.0
    world.loop.at(0.3, world.chances.pop, "worker start fails", None)


# --- what makes a moment likely ---


def _now_and_then_another_term(world: World) -> None:
    """What was heard before is of a term that is over."""
    if world.rng.random() < 0.4:
        world.planner.delete()
        world.loop.at(0.02, world.planner.make)


def _answers_late(world: World, seconds: float) -> None:
    """Of publishes: an order comes before its version's name."""
    _now_and_then_another_term(world)
    for path in ("/v1/publishes", "/v1/orders/end") if world.rng.random() < 0.5 else ("/v1/publishes",):
        world.network.slow[path] = 0.1 + world.rng.random() * seconds / 4
        world.loop.at(seconds, world.network.slow.pop, path, None)


def _writes_stall(world: World, seconds: float) -> None:
    for session in sorted(world.wires.sessions):
        world.wires.stalls[session] = world.loop.now + seconds / 2
    world.kill_seconds = 0.5 * world.rng.random()
    world.loop.at(seconds, setattr, world, "kill_seconds", 0.002)
    _now_and_then_another_term(world)


def _found_again(world: World, seconds: float) -> None:
    """Sources start anew with what they sealed, compare it slowly, and write slowly; somebody wants to have it."""
    world.add_engine()
    world.compare_seconds = 1.0 + seconds
    world.loop.at(seconds, setattr, world, "compare_seconds", 1.0)
    world.trainer.interval = 4.0  # a long step: what was sealed is asked for meanwhile
    world.loop.at(seconds, setattr, world.trainer, "interval", world.interval)
    for pod in world.source_pods:
        pod.crash_agent()
        world.loop.at(0.2, pod.start_agent)
    world.loop.at(0.5, _writes_stall, world, seconds)


def _words_late(world: World, seconds: float) -> None:
    """A worker says that a call is over some time after its last bucket."""
    world.wires.end_seconds = 0.08
    world.loop.at(seconds, setattr, world.wires, "end_seconds", 0.002)


def _pieces_late(world: World, seconds: float) -> None:
    world.wires.late = 0.5
    world.loop.at(seconds, setattr, world.wires, "late", 0.0)


def _slow_trainer(world: World, seconds: float) -> None:
    """It fills slowly, and says late that it has copied; one rank more than the others."""
    world.dawdles = (world.rng.randrange(len(world.trainer.ranks)), world.rng.random() * seconds / 4)
    world.loop.at(seconds, setattr, world, "dawdles", None)
    if world.rng.random() < 0.5:
        _answers_late(world, seconds)


def _targets_leave(world: World, machine: AnyMachine, pick: float) -> None:
    """The engines that a rank fills for are gone before it has filled: nobody waits for its part."""
    dawdles = world.dawdles
    plan = world.planner.plan
    rank = next((k for k in ranks(world) if dawdles is not None and k.who.rank == dawdles[0]), None)
    if rank is None or plan is None:
        return
    mine = {
        engine.leader
        for engine in plan.engines
        for target in engine.targets
        for route in target.routes
        if (route.source, route.rank) == (rank.writer.uid, rank.writer.rank)
    }
    for pod in list(world.engine_pods):
        if pod.uid in mine and len(mine) < len(world.engine_pods):
            world.remove_engine(pod)


def _workers_start_slowly(world: World, seconds: float) -> None:
    world.start_seconds = seconds / 2
    world.loop.at(seconds, setattr, world, "start_seconds", 0.05)
    _writes_stall(world, seconds)


def _engines_restart(world: World, seconds: float) -> None:
    """Once they have served for a while: each gets back what it had."""
    for pod in world.engine_pods:
        world.loop.at(0.3 * world.rng.random(), _replace, pod)


def _coordinator_dies(world: World, machine: AnyMachine, pick: float) -> None:
    for pod in world.source_pods:
        if pod.agent.life.alive and pod.agent.coordination.machine is machine:
            pod.crash_agent()
            world.loop.at(0.2 + pick, pod.start_agent)


def _told_again(world: World, machine: AnyMachine, pick: float) -> None:
    """An answer that a coordinator had comes again, and speaks of a sync that has ended, or goes on."""
    for pod in world.source_pods:
        coordination = pod.agent.coordination
        if pod.agent.life.alive and coordination.machine is machine and coordination.heard:
            kinds = list(coordination.heard.values())
            coordination.feed(world.rng.choice(kinds[int(pick * len(kinds))]))


def _orders_unanswered(world: World, seconds: float) -> None:
    """Whether they were taken is known only when the disk is asked, or engines commit; and the disk may be full."""
    world.network.slow["/v1/orders"] = 0.3 + 0.7 * world.rng.random()
    world.loop.at(seconds, world.network.slow.pop, "/v1/orders", None)
    world.disk_seconds = world.rng.random() * seconds / 2
    world.loop.at(seconds, setattr, world, "disk_seconds", 0.004)
    world.chances["disk full"] = 0.3
    world.loop.at(seconds, world.chances.pop, "disk full", None)


_R = r.RouteState
_C = CoordinatorState
_HEARD = (
    _heard_again(s.Ordered), _heard_again(s.Ordered), _first_again(s.Ordered), _heard_again(s.Ended),
    _first_again(s.Ended), _heard_again(s.LaneDead), _heard_again(s.Decided), _lane_held, _no_room, _input_wrong,
    _worker_dies, _another_coordinates,
)  # fmt: skip
_ENDS = tuple(_once_it_ends(spring) for spring in _HEARD)
KINDS: tuple[Kind, ...] = (
    Kind("a source whose order waits", _source_in(SourceState.WAITING), _HEARD, _answers_late),
    Kind("a source that ends an order", _source_in(SourceState.ENDING, SourceState.RUNNING), _ENDS, _writes_stall),
    Kind("a source that ends an order beside found bytes", _source_in(SourceState.ENDING, SourceState.RUNNING),
         _ENDS, _found_again),
    Kind("a source whose order runs", _source_in(SourceState.RUNNING), _HEARD, _writes_stall),
    Kind("an idle source", _source_in(SourceState.IDLE), _HEARD, _found_again),
    Kind("a source that fills", _fills, (_heard_again(s.Cut), _targets_leave, _input_wrong), _slow_trainer),
    Kind("a source that fills over found bytes", _fills, (_input_wrong,), _found_again),
    Kind("a source with two sealed versions", _two_sealed, (_agent_dies,)),
    Kind("a route with writes and receipts under way",
         _route_that(lambda m: m.state is _R.OPEN and bool(m.writing and m.checking)),
         (_order_ends, _receipts_refused), _pieces_late),
    Kind("a route whose shard is filled",
         _route_that(lambda m: m.state is _R.OPEN and bool(m.writing) and not m.complete),
         (_receipts_refused, _order_ends), _slow_trainer),
    Kind("a route that is verified", _route_that(lambda m: m.state is _R.CLOSING), (_lane_dies,), _words_late),
    Kind("a route that is given up", _route_that(lambda m: m.state is _R.BREAKING),
         (_lane_dies, _receipts_refused), _pieces_late),
    Kind("a target that replaces its worker", _target_in(t.TargetState.FENCING),
         (_process_replaced, _no_worker_starts), _workers_start_slowly),
    Kind("an engine that is to get its version back", _leader_in(m.LeaderState.REAPPLYING),
         (_falls_silent, _process_replaced, _welcome_again), _engines_restart),
    Kind("an engine that is committed to", _leader_in(m.LeaderState.COMMITTING), (_welcome_again,)),
    Kind("an engine that is refused", _leader_in(m.LeaderState.REFUSED), (_welcome_again,), beside="engine repacks"),
    *(Kind(f"a coordinator: {state.value}", _coordinator_in(state), (_told_again,), _orders_unanswered)
      for state in (_C.GRANTING, _C.STAGING, _C.DECIDING, _C.COMMITTING)),
    Kind("a coordinator whose engines commit", _coordinator_in(_C.COMMITTING), (_coordinator_dies,)),
)  # fmt: skip
