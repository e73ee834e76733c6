"""What seldom meets a machine in some state: repeats, deaths and failures, at the moment that somebody waited for.

Nothing here does what a network, a disk, a worker or a peer cannot do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tools.simulate import lures, moments
from tools.simulate.clock import Future
from tools.simulate.lures import replace_process
from tools.simulate.moments import AnyMachine
from weightsync.wire import members as w
from weightsync.wire import v1
from weightsync_agent.protocol import events as e
from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.engine_leader import LeaderState
from weightsync_agent.protocol.joiner import Joiner
from weightsync_agent.protocol.replica import ReplicaState
from weightsync_agent.protocol.source import Source, SourceState
from weightsync_agent.protocol.target import Target

if TYPE_CHECKING:
    from tools.simulate.pods import EnginePod
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


def falls_silent(world: World, machine: AnyMachine, pick: float) -> None:
    pod = moments.pod_of(world, machine)
    if pod is not None:
        pod.engine.fail_calls.appendleft(("pause" if pick < 0.6 else "name", False))
        world.loop.at(0.02, _silence, pod, world.loop.now + 2.5 + 2 * pick)


def _silence(pod: EnginePod, until: float) -> None:
    pod.engine.silent_until = max(pod.engine.silent_until, until)


def process_replaced(world: World, machine: AnyMachine, pick: float) -> None:
    """Faster than its agent looks; a pause that was under way failed with the old one."""
    pod = moments.pod_of(world, machine)
    if pod is None or not pod.engine.alive:
        return
    for _ in range(5):
        pod.engine.fail_calls.appendleft(("pause", False))
    world.loop.at(0.02, replace_process, pod)
    world.loop.at(3.0, pod.engine.fail_calls.clear)


def replaced_at_once(world: World, machine: AnyMachine, pick: float) -> None:
    """Between two steps: none fails of itself. One time in two, or nothing would ever be committed."""
    pod = moments.pod_of(world, machine)
    if pod is not None and pick < 0.5:
        replace_process(pod)


def welcome_again(world: World, machine: AnyMachine, pick: float) -> None:
    """Sent before anything was published, and long under way."""
    pod = moments.pod_of(world, machine)
    if pod is not None and pod.agent.fence.term:
        body = v1.Welcome(term=pod.agent.fence.term, coordinator=pod.agent.fence.coordinator, initial_gate="Open")
        world.network.deliver(pod.address, "/v1/welcome", body)


def member_restarts(world: World, machine: AnyMachine, pick: float) -> None:
    """The other pod's agent is another, and is there again before the leader's state is: its calls take long."""
    member = moments.member_of(world, machine)
    if member is None:
        return
    engine = member.leader.engine
    engine.slow_until = max(engine.slow_until, world.loop.now + 2.0)
    member.crash_agent()
    world.loop.at(0.05 + 0.1 * pick, member.start_agent)


def released_late(world: World, machine: AnyMachine, pick: float) -> None:
    """What ended a commit before this one was long under way."""
    member = moments.member_of(world, machine)
    if member is not None:
        agent = member.agent
        body = w.Release(leader=member.leader.uid, target=member.uid, life=agent.machine.life,
                         grants={member.rank: world.nonce(32)})  # fmt: skip
        world.network.deliver(member.address, "/v1/member/releases", body)


def commit_is_lost(world: World, machine: AnyMachine, pick: float) -> None:
    """The leader cannot tell that its commit has ended, and certifies the process that took the engine's place."""
    member = moments.member_of(world, machine)
    if member is None:
        return
    pair = frozenset((member.address, member.leader.address))
    world.network.cut.add(pair)
    world.loop.at(0.3 + 1.2 * pick, world.network.cut.discard, pair)
    replace_process(member.leader)


def leader_is_another(world: World, machine: AnyMachine, pick: float) -> None:
    """Its agent dies before it has written a byte; what the next one answers the member is long under way."""
    member = moments.member_of(world, machine)
    if member is None:
        return
    world.network.slow["/v1/members"] = 1.5
    world.loop.at(2.5, world.network.slow.pop, "/v1/members", None)
    member.leader.crash_agent(torn=False)
    world.loop.at(0.05, member.leader.start_agent)


def no_worker_starts(world: World, machine: AnyMachine, pick: float) -> None:
    world.chances["worker start fails"] = 1.0
    world.loop.at(0.3, world.chances.pop, "worker start fails", None)


def _holder(world: World, machine: AnyMachine) -> EnginePod | None:
    """Whom the joiner reads from, or is about to; or an engine within a sync."""
    found = machine.offer if isinstance(machine, Joiner) else None
    reader = moments.pod_of(world, machine) if isinstance(machine, Target) else None
    uid = found.uid if found is not None else ""
    if reader is not None and reader.agent.relaying.known is not None:
        uid = reader.agent.relaying.known.uid
    return next((pod for pod in world.engine_pods if pod.uid == uid), None)


def holder_dies(world: World, machine: AnyMachine, pick: float) -> None:
    """With its workers; it comes again."""
    pod = _holder(world, machine)
    if pod is not None:
        pod.crash_agent(torn=False)
        world.loop.at(0.2 + pick, pod.start_agent)


def holder_stops(world: World, machine: AnyMachine, pick: float) -> None:
    """Nothing is read from it for a while, and it answers nobody."""
    pod = _holder(world, machine)
    if pod is None:
        return
    world.freeze(pod.agent.life, 0.5 + 2 * pick)
    for target in pod.agent.targets.values():
        for session in target.worker.arenas if target.worker is not None else ():
            world.wires.stalls[session] = world.loop.now + 0.5 + 2 * pick


def holder_goes(world: World, machine: AnyMachine, pick: float) -> None:
    """Its pod is deleted."""
    pod = _holder(world, machine)
    if pod is not None and len(world.engine_pods) > 1:
        world.remove_engine(pod)


def trainers_go(world: World, machine: AnyMachine, pick: float) -> bool:
    """In the middle of an engine's first sync, for longer than that lasts; another engine holds the last version."""
    pod = moments.pod_of(world, machine)
    fresh = pod is not None and pod.agent.machine.state is LeaderState.FRESH
    held = fresh and any(each.agent.holding.held().decided is not None for each in world.engine_pods)
    if held:
        lures.trainers_away(world, world.deadline_seconds + 4 * world.stall_seconds + 2.0)
    return held


def joiner_dies(world: World, machine: AnyMachine, pick: float) -> None:
    """Its agent, and what reads for it."""
    pod = moments.pod_of(world, machine)
    if pod is not None:
        pod.crash_agent(torn=pick < 0.3)
        world.loop.at(0.1 + pick, pod.start_agent)


def read_spoiled(world: World, machine: AnyMachine, pick: float) -> None:
    """What comes over the wire next is not what was sent; or a read fails, and its bytes come all the same."""
    if pick < 0.5:
        world.wires.corrupt += 1
    else:
        world.wires.fail += 1


def sync_begins(world: World, machine: AnyMachine, pick: float) -> None:
    """The next version is published just now, again and again."""
    world.trainer.interval = 0.2
    world.loop.at(1.0 + pick, setattr, world.trainer, "interval", world.interval)
