"""Where ambushes wait: which state of which machine, and whose machine it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from weightsync_agent.engines.sequence import Step
from weightsync_agent.protocol import direct as d
from weightsync_agent.protocol import engine_leader as m
from weightsync_agent.protocol import joiner as j
from weightsync_agent.protocol import route as r
from weightsync_agent.protocol import target as t
from weightsync_agent.protocol.coordinator import Coordinator, CoordinatorState
from weightsync_agent.protocol.engine_member import EngineMember, MemberState
from weightsync_agent.protocol.replica import ReplicaState
from weightsync_agent.protocol.source import Source, SourceState
from weightsync_agent.protocol.table import Machine

if TYPE_CHECKING:
    from tools.simulate.member_side import MemberPod
    from tools.simulate.pods import EnginePod
    from tools.simulate.routes import RouteRunner
    from tools.simulate.source_rank import SourceRank
    from tools.simulate.world import World

AnyMachine = Machine[Any]
Moment = Callable[[AnyMachine], bool]


def ranks(world: World) -> Iterator[SourceRank]:
    """Of all agents that live."""
    for pod in world.source_pods:
        if pod.agent.life.alive:
            yield from pod.agent.ranks.values()


def rank_of(world: World, machine: AnyMachine) -> SourceRank | None:
    return next((rank for rank in ranks(world) if rank.machine is machine), None)


def pod_of(world: World, machine: AnyMachine) -> EnginePod | None:
    for pod in world.engine_pods:
        machines: list[AnyMachine] = [pod.agent.machine, pod.agent.joining.machine]
        machines += [arena.machine for target in pod.agent.targets.values() for arena in target.arenas]
        if pod.agent.life.alive and any(each is machine for each in machines):
            return pod
    return None


def member_of(world: World, machine: AnyMachine) -> MemberPod | None:
    """The second pod of an engine: of the member, or of the leader whose machine it is."""
    for pod in world.engine_pods:
        member = pod.member
        if member is not None and machine in (pod.agent.machine, member.agent.machine):
            return member
    return None


def route_of(world: World, machine: AnyMachine) -> tuple[SourceRank, RouteRunner] | None:
    for rank in ranks(world):
        for runner in rank.runners.values():
            if runner.machine is machine:
                return rank, runner
    return None


def source_in(*states: SourceState) -> Moment:
    return lambda machine: isinstance(machine, Source) and machine.state in states


def refused_before(*states: SourceState) -> Moment:
    """Such a source has refused an order of the term that holds."""

    def holds(machine: AnyMachine) -> bool:
        if not isinstance(machine, Source) or machine.state not in states:
            return False
        return bool(machine.admission.over.keys() - machine.admission.taken.keys())

    return holds


def fills(machine: AnyMachine) -> bool:
    return isinstance(machine, Source) and any(r.state is ReplicaState.FILLING for r in machine.shelf.all())


def filled_once(machine: AnyMachine) -> bool:
    """A source that has arenas."""
    return isinstance(machine, Source) and bool(machine.shelf.all())


def two_sealed(machine: AnyMachine) -> bool:
    if not isinstance(machine, Source):
        return False
    held = machine.shelf.replicas.values()
    return any([r.state for r in each].count(ReplicaState.SEALED) > 1 for each in held)


def route_that(holds: Callable[[r.Route], bool]) -> Moment:
    return lambda machine: isinstance(machine, r.Route) and holds(machine)


def coordinator_in(state: CoordinatorState) -> Moment:
    return lambda machine: isinstance(machine, Coordinator) and machine.state is state


def orders_are_out(machine: AnyMachine) -> bool:
    """Of a publish; there is a version before it, which repairs could bring."""
    if not isinstance(machine, Coordinator) or machine.state is not CoordinatorState.STAGING:
        return False
    return machine.sealed is not None and machine.sync is not None and machine.sync.repair is None


def leader_in(state: m.LeaderState) -> Moment:
    return lambda machine: isinstance(machine, m.EngineLeader) and machine.state is state


def goes_on(machine: AnyMachine) -> bool:
    """A leader that has named its engine whole, and has not told it yet to go on."""
    if not isinstance(machine, m.EngineLeader) or machine.state is not m.LeaderState.COMMITTING:
        return False
    return machine.steps[machine.at] in {Step.JOURNAL_CURRENT, Step.CONTINUE}


def leads_pair(state: m.LeaderState) -> Moment:
    """A leader in that state, once it has looked at the engine's other pod."""
    return lambda machine: isinstance(machine, m.EngineLeader) and machine.state is state and bool(machine.pods)


def member_in(state: MemberState) -> Moment:
    return lambda machine: isinstance(machine, EngineMember) and machine.state is state


def target_in(state: t.TargetState) -> Moment:
    return lambda machine: isinstance(machine, t.Target) and machine.state is state


def direct_in(state: d.DirectState) -> Moment:
    return lambda machine: isinstance(machine, d.DirectTarget) and machine.state is state


def joiner_in(state: j.JoinerState) -> Moment:
    return lambda machine: isinstance(machine, j.Joiner) and machine.state is state


def relays_from_another(machine: AnyMachine) -> bool:
    """A target whose engine reads within a sync."""
    if not isinstance(machine, t.Target) or machine.state is not t.TargetState.PULLING:
        return False
    return machine.grant is not None and not machine.grant.sync.startswith("pull/")
