"""What seldom meets an engine, its second pod, or one that reads from another; as encounters.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.simulate import lures, moments
from tools.simulate.lures import replace_process
from tools.simulate.moments import AnyMachine
from weightsync.wire import members as w
from weightsync.wire import v1
from weightsync_agent.protocol.engine_leader import LeaderState
from weightsync_agent.protocol.joiner import Joiner
from weightsync_agent.protocol.target import Target

if TYPE_CHECKING:
    from tools.simulate.pods import EnginePod
    from tools.simulate.world import World


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


def joiner_stops(world: World, machine: AnyMachine, pick: float) -> None:
    """Its agent asks nobody for longer than a lease lasts, and goes on."""
    pod = moments.pod_of(world, machine)
    if pod is not None:
        world.freeze(pod.agent.life, 0.5 + 2 * pick)


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
