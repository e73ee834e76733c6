"""What seldom meets a machine in some state: repeats, deaths and failures, at the moment that somebody waited for.

Nothing here does what a network, a disk, a worker or a peer cannot do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tools.simulate import moments
from tools.simulate.clock import Future
from tools.simulate.moments import AnyMachine
from weightsync.wire import v1
from weightsync_agent.protocol import events as e
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.replica import ReplicaState
from weightsync_agent.protocol.source import Source, SourceState

if TYPE_CHECKING:
    from tools.simulate.world import World

Encounter = Callable[["World", AnyMachine, float], bool | None]  # False: there was nobody to meet


def heard_again(kind: type) -> Encounter:
    """What came before comes again: repeated by a caller that got no answer, or long under way."""

    def spring(world: World, machine: AnyMachine, pick: float) -> None:
        rank = moments.rank_of(world, machine)
        heard = rank.heard.get(kind) if rank is not None else None
        if rank is not None and heard:
            rank.feed(heard[-1 if pick < 0.4 else int(pick * len(heard))])

    return spring


def refused_again(world: World, machine: AnyMachine, pick: float) -> bool:
    """An order that was refused comes once more."""
    rank = moments.rank_of(world, machine)
    if rank is None:
        return False
    admission = rank.machine.admission
    refused = [
        order
        for order in rank.heard.get(s.Ordered, ())
        if isinstance(order, s.Ordered)
        and order.order.sync in admission.over
        and order.order.sync not in admission.taken
        and order.order.term == admission.fence.term
    ]
    if refused:
        rank.feed(refused[int(pick * len(refused))])
    return bool(refused)


def cut_again(world: World, machine: AnyMachine, pick: float) -> None:
    """A publish that still fills is cut again; its driver never cuts a later one."""
    rank = moments.rank_of(world, machine)
    if rank is None or not isinstance(machine, Source):
        return
    filling = [
        cut
        for cut in rank.heard.get(s.Cut, ())
        if isinstance(cut, s.Cut)
        and any(r.state is ReplicaState.FILLING for r in machine.shelf.owned(cut.publish, cut.program))
    ]
    if filling:
        rank.feed(filling[int(pick * len(filling))])


def first_again(kind: type) -> Encounter:
    """The first of all: of a term that is over, where there was another since."""

    def spring(world: World, machine: AnyMachine, pick: float) -> None:
        rank = moments.rank_of(world, machine)
        if rank is not None and rank.heard.get(kind):
            rank.feed(rank.heard[kind][0])

    return spring


def once_it_ends(spring: Encounter) -> Encounter:
    """A running order is given up; what meets the source comes after that. A next order that waits is told again."""

    def either(world: World, machine: AnyMachine, pick: float) -> None:
        rank = moments.rank_of(world, machine)
        if machine.state is SourceState.RUNNING:
            given_up(world, machine, pick)
        elif rank is not None and rank.machine.pending is not None and pick < 0.5:
            rank.feed(rank.heard[s.Ordered][-1])
        else:
            spring(world, machine, pick)

    return either


def given_up(world: World, machine: AnyMachine, pick: float) -> None:
    """Another rank's input was wrong, so the coordinator ends the order; and its writes take their time to end."""
    rank = moments.rank_of(world, machine)
    running = rank.machine.running if rank is not None else None
    if running is None:
        return
    for planned in running.order.routes:
        world.wires.stalls[planned.region.session] = world.loop.now + 0.2 + pick
    _broken_elsewhere(world, running.order.sync)


def _broken_elsewhere(world: World, sync_id: str = "") -> None:
    """Their coordinators hear that what they sync will never be whole; or the one of that sync does."""
    for pod in world.source_pods:
        sync = pod.agent.coordination.machine.sync
        meant = sync is not None and sync_id in ("", sync.id) and sync.repair is None
        if pod.agent.life.alive and sync is not None and meant:
            pod.agent.coordination.feed(e.PublishBroken(sync.lineage, sync.number, "InputRaised", "another rank's"))


def another_coordinates(world: World, machine: AnyMachine, pick: float) -> None:
    """Or, where there is no other, the same in another term."""
    planner = world.planner
    if planner.plan is None or len(world.source_pods) < 2:
        planner.delete()
        world.loop.at(0.02, planner.make)
        return
    planner.shun(planner.plan.coordinator)
    world.loop.at(1.0 + pick, planner.shunned.clear)


def lane_held(world: World, machine: AnyMachine, pick: float) -> None:
    """Some worker of it takes no write: whoever digests meets that, too."""
    rank = moments.rank_of(world, machine)
    if rank is not None:
        lanes = sorted(rank.machine.lanes.lanes)
        rank.feed(s.LaneHeld(lanes[int(pick * len(lanes))]))


def no_room(world: World, machine: AnyMachine, pick: float) -> None:
    world.chances["no room"] = 1.0
    world.loop.at(0.5 + 2 * pick, world.chances.pop, "no room", None)


def worker_dies(world: World, machine: AnyMachine, pick: float) -> None:
    rank = moments.rank_of(world, machine)
    if rank is not None:
        rank.agent.kill_worker(pick)


def input_wrong(world: World, machine: AnyMachine, pick: float) -> None:
    """One of its publishes turns out to be broken."""
    rank = moments.rank_of(world, machine)
    open_ = [p for p in rank.publishes.values() if p.trouble is None and not p.copied] if rank is not None else []
    if rank is not None and open_:
        rank.broken(open_[int(pick * len(open_))].id, "InputRaised", "the trainer's input raised")


def another_input_wrong(world: World, machine: AnyMachine, pick: float) -> None:
    """Another rank's: coordinators end what they sync, and this one fills on."""
    _broken_elsewhere(world)


def over_found_bytes(world: World, machine: AnyMachine, pick: float) -> None:
    """Its agent starts anew. Before all is compared an order ends, or the arena goes to a publish that breaks."""
    rank = moments.rank_of(world, machine)
    if rank is None:
        return
    states = {replica.state for replica in rank.machine.shelf.all()}
    if not rank.comparing:
        if ReplicaState.SEALED in states and pick < 0.15:  # seldom, or the trainer would never get on
            agent_dies(world, machine, 0.1)
    elif machine.state is SourceState.RUNNING:
        given_up(world, machine, pick)
        world.loop.at(0.003 + 0.03 * pick, rank.hurry.set)
    elif states & {ReplicaState.EMPTY, ReplicaState.SPENT} and pick < 0.3:
        rank.hurry.set()
    else:
        input_wrong(world, machine, pick)


def compared_as_it_ends(world: World, machine: AnyMachine, pick: float) -> bool:
    """What a former life left is known just after an order was given up, or once its publish has ended."""
    rank = moments.rank_of(world, machine)
    if rank is None or not rank.comparing:
        return False
    given_up(world, machine, pick)
    world.loop.at(0.003 + 0.06 * pick if pick < 0.5 else 2 * pick - 0.5, rank.hurry.set)
    return True


def targets_leave(world: World, machine: AnyMachine, pick: float) -> None:
    """The engines that a rank fills for are gone before it has filled: nobody waits for its part."""
    dawdles = world.dawdles
    plan = world.planner.plan
    rank = next((k for k in moments.ranks(world) if dawdles is not None and k.who.rank == dawdles[0]), None)
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


def agent_dies(world: World, machine: AnyMachine, pick: float) -> None:
    rank = moments.rank_of(world, machine)
    if rank is not None:
        rank.agent.pod.crash_agent()
        world.loop.at(0.1 + pick, rank.agent.pod.start_agent)


def order_ends(world: World, machine: AnyMachine, pick: float) -> None:
    """Its coordinator gives the sync up; now and then as the worker dies."""
    found = moments.route_of(world, machine)
    if found is not None:
        rank, runner = found
        order = runner.order
        if pick < 0.7:
            lane_dies(world, machine, pick)
        # Behind the worker's last words, and before they are heard.
        turn = Future(world.loop)
        turn.set()
        turn.then(lambda _: rank.feed(s.Ended(order.sync, order.term, order.coordinator)))


def lane_dies(world: World, machine: AnyMachine, pick: float) -> None:
    """The worker that it writes through; now and then the one that it writes to as well."""
    found = moments.route_of(world, machine)
    if found is None:
        return
    rank, runner = found
    receiver = world.wires.sessions.get(runner.planned.region.session)
    if pick < 0.3 and receiver is not None:
        receiver.kill()
    worker = rank.workers.get(runner.lane)
    if worker is not None:
        worker.kill()


def receipts_refused(world: World, machine: AnyMachine, pick: float) -> None:
    """A newer coordinator has spoken to the target, and not yet to the source."""
    found = moments.route_of(world, machine)
    plan = world.planner.plan
    if found is None or plan is None:
        return
    host = world.network.hosts.get(found[1].planned.address)
    if host is not None and host.life.alive:
        world.network.refuse = (host, "/v1/receipts")
        world.loop.at(0.05, setattr, world.network, "refuse", None)


def grant_is_void(world: World, machine: AnyMachine, pick: float) -> bool:
    """The agent of an engine that is written to itself has died; the next one asks whether its writer is quiet."""
    found = moments.route_of(world, machine)
    pods = [pod for pod in world.engine_pods if found is not None and pod.address == found[1].planned.address]
    if found is None or not pods or not pods[0].direct:
        return False
    planned = found[1].planned
    pods[0].crash_agent(torn=False)
    world.loop.at(0.05, pods[0].start_agent)
    asked = v1.QuietRequest(grant=planned.grant, session=planned.region.session)
    world.network.deliver(found[0].agent.pod.address, "/v1/quiet", asked)
    return True


def coordinator_dies(world: World, machine: AnyMachine, pick: float) -> None:
    for pod in world.source_pods:
        if pod.agent.life.alive and pod.agent.coordination.machine is machine:
            pod.crash_agent()
            world.loop.at(0.2 + pick, pod.start_agent)


def told_again(world: World, machine: AnyMachine, pick: float) -> None:
    """An answer that a coordinator had comes again, and speaks of a sync that has ended, or goes on."""
    for pod in world.source_pods:
        coordination = pod.agent.coordination
        if pod.agent.life.alive and coordination.machine is machine and coordination.heard:
            kinds = list(coordination.heard.values())
            coordination.feed(world.rng.choice(kinds[int(pick * len(kinds))]))
