"""Encounters of coordinators: another takes over while the former goes on, or a source hears no more of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.simulate.encounters import another_coordinates
from tools.simulate.moments import AnyMachine

if TYPE_CHECKING:
    from tools.simulate.world import World


def deposed(world: World, machine: AnyMachine, pick: float) -> None:
    """Another coordinates; the former one does not hear of it for a while. Where there is none, the same anew."""
    for pod in world.source_pods:
        if pod.agent.life.alive and pod.agent.coordination.machine is machine:
            pod.deaf_until = world.loop.now + 0.3 + 2 * pick
            world.loop.at(0.3 + 2 * pick, pod.planned)
    another_coordinates(world, machine, pick)


def commits_lost(world: World, machine: AnyMachine, pick: float) -> None:
    """Its decision is written, and nobody hears of it before it has died; it comes again with what it wrote.

    Before another coordinates, and about when its publishers ask for their outcome again.
    """
    pod = next((p for p in world.source_pods if p.agent.coordination.machine is machine), None)
    if pod is None:
        return
    pairs = [frozenset((pod.address, engine.address)) for engine in world.engine_pods]
    world.network.cut.update(pairs)
    dies = 0.05 + world.disk_seconds
    world.loop.at(dies, pod.crash_agent)
    world.loop.at(dies + 0.75 + 0.2 * pick, world.network.cut.difference_update, pairs)
    world.loop.at(dies + 0.75 + 0.2 * pick, pod.start_agent)


def source_cut_off(world: World, machine: AnyMachine, pick: float) -> None:
    """An order was sent, and is carried out; nothing else passes between its source and the coordinator meanwhile.

    The source is the slowest, if that is another than the coordinator.
    """
    coordinates = next((p for p in world.source_pods if p.agent.coordination.machine is machine), None)
    others = [pod for pod in world.source_pods if pod is not coordinates]
    if coordinates is None or not others:
        return
    slowest = world.trainer.ranks[world.dawdles[0]].pod if world.dawdles is not None else None
    other = slowest if slowest in others else others[int(pick * len(others))]
    pair = frozenset((coordinates.address, other.address))
    world.network.cut.add(pair)
    world.loop.at(5 * world.stall_seconds + 2 * pick, world.network.cut.discard, pair)
