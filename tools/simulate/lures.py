"""What makes a rare moment likely, for some seconds: answers, writes, workers or a trainer that take their time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.simulate import moments

if TYPE_CHECKING:
    from tools.simulate.pods import EnginePod
    from tools.simulate.world import World


def now_and_then_another_term(world: World, seconds: float = 0.0) -> None:
    """What was heard before is of a term that is over."""
    if world.rng.random() < 0.4:
        world.planner.delete()
        world.loop.at(0.02, world.planner.make)


def answers_late(world: World, seconds: float) -> None:
    """Of publishes: an order comes before its version's name."""
    now_and_then_another_term(world)
    for path in ("/v1/publishes", "/v1/orders/end") if world.rng.random() < 0.5 else ("/v1/publishes",):
        world.network.slow[path] = 0.1 + world.rng.random() * seconds / 4
        world.loop.at(seconds, world.network.slow.pop, path, None)


def writes_stall(world: World, seconds: float) -> None:
    for session in sorted(world.wires.sessions):
        world.wires.stalls[session] = world.loop.now + seconds / 2
    world.kill_seconds = 0.5 * world.rng.random()
    world.loop.at(seconds, setattr, world, "kill_seconds", 0.002)
    now_and_then_another_term(world)


def quick_steps(world: World, seconds: float) -> None:
    """The next version comes while the one before still ends."""
    world.trainer.interval = 0.3
    world.loop.at(seconds / 2, setattr, world.trainer, "interval", world.interval)
    writes_stall(world, seconds)


def compares_slowly(world: World, seconds: float) -> None:
    world.compare_seconds = 1.0 + seconds
    world.loop.at(seconds, setattr, world, "compare_seconds", 1.0)


def sources_restart(world: World, seconds: float) -> None:
    """Once there is a version, and one after the other; what they find is compared slowly."""
    compares_slowly(world, 2 * seconds)
    for pod in world.source_pods:
        at = seconds * (0.2 + 0.3 * world.rng.random())
        world.loop.at(at, pod.crash_agent)
        world.loop.at(at + 0.1, pod.start_agent)


def words_late(world: World, seconds: float) -> None:
    """A worker says that a call is over some time after its last bucket."""
    world.wires.end_seconds = 0.08
    world.loop.at(seconds, setattr, world.wires, "end_seconds", 0.002)


def pieces_late(world: World, seconds: float) -> None:
    world.wires.late = 0.5
    world.loop.at(seconds, setattr, world.wires, "late", 0.0)


def slow_trainer(world: World, seconds: float) -> None:
    """It fills slowly, and says late that it has copied; one rank more than the others."""
    world.dawdles = (world.rng.randrange(len(world.trainer.ranks)), world.rng.random() * seconds / 4)
    world.loop.at(seconds, setattr, world, "dawdles", None)
    if world.rng.random() < 0.5:
        answers_late(world, seconds)


def fills_slowly_and_pieces_late(world: World, seconds: float) -> None:
    """A route that is given up waits for its writes while its shard still fills."""
    pieces_late(world, seconds)
    world.dawdles = (world.rng.randrange(len(world.trainer.ranks)), 0.05 + 0.2 * world.rng.random())
    world.loop.at(seconds, setattr, world, "dawdles", None)


def trainer_rests(world: World, seconds: float) -> None:
    """What is lacking then comes by repairs."""
    world.loop.at(0.3 * seconds, world.trainer.rest, seconds)


def one_rank_falls_behind(world: World, seconds: float) -> None:
    """After a while, and not beside the coordinator: it still fills when others wait for it no longer.

    Whatever happens to the answer to its order, happens before it arrives.
    """
    world.network.slow["/v1/orders"] = 0.1 + 0.1 * world.rng.random()
    world.loop.at(2 * seconds, world.network.slow.pop, "/v1/orders", None)
    world.loop.at(0.3 * seconds, _falls_behind, world)
    world.loop.at(2 * seconds, setattr, world, "dawdles", None)


def _falls_behind(world: World) -> None:
    coordinator = world.planner.plan.coordinator if world.planner.plan is not None else ""
    others = [rank for rank in world.trainer.ranks if rank.pod.uid != coordinator]
    if others:
        world.dawdles = (world.rng.choice(others).number, world.stall_seconds * (1 + 3 * world.rng.random()))


def ends_late(world: World, seconds: float) -> None:
    """A source writes what a slow trainer fills, long after its order has ended."""
    slow_trainer(world, seconds)
    world.network.slow["/v1/orders/end"] = 0.5 + world.rng.random() * seconds / 2
    world.loop.at(seconds, world.network.slow.pop, "/v1/orders/end", None)


def workers_start_slowly(world: World, seconds: float) -> None:
    """And end slowly; those that are there are gone."""
    world.start_seconds = seconds / 2
    world.kill_seconds = world.rng.random() * seconds / 2
    world.loop.at(seconds, setattr, world, "kill_seconds", 0.002)
    for rank in moments.ranks(world):
        rank.agent.kill_worker(0.0)
    world.loop.at(seconds, setattr, world, "start_seconds", 0.05)
    writes_stall(world, seconds)


def replace_process(pod: EnginePod) -> None:
    if pod.engine.alive:
        pod.engine.end_life()
        pod.start_engine()


def engines_restart(world: World, seconds: float) -> None:
    """Once they have served for a while: each gets back what it had."""
    for pod in world.engine_pods:
        world.loop.at(0.3 * world.rng.random(), replace_process, pod)


def engines_restart_and_pods_hold_late(world: World, seconds: float) -> None:
    """As engines_restart; who leads an engine of two pods waits for the other one until it looks at it again."""
    late = (0.5 + 0.2 * world.rng.random()) * world.probe_seconds / 2
    world.loop.at(0.3, world.network.slow.__setitem__, "/v1/member/holds", late)
    world.loop.at(seconds, world.network.slow.pop, "/v1/member/holds", None)
    engines_restart(world, seconds)


def orders_unanswered(world: World, seconds: float) -> None:
    """Whether they were taken is known only when the disk is asked, or engines commit; and the disk may be full."""
    world.network.slow["/v1/orders"] = 0.3 + 0.7 * world.rng.random()
    world.loop.at(seconds, world.network.slow.pop, "/v1/orders", None)
    world.disk_seconds = world.rng.random() * seconds / 2
    world.loop.at(seconds, setattr, world, "disk_seconds", 0.004)
    world.chances["disk full"] = 0.3
    world.loop.at(seconds, world.chances.pop, "disk full", None)


def engines_come(world: World, seconds: float) -> None:
    """With the trainer's pods there, or away for a while."""
    if world.rng.random() < 0.5:
        trainers_away(world, seconds / 2)
    for _ in range(world.rng.choice((1, 2))):
        world.add_engine()


def engines_come_and_wait_for_leases(world: World, seconds: float) -> None:
    """They look at themselves again while they wait."""
    world.network.slow["/v1/leases"] = 0.3 + 0.5 * world.rng.random()
    world.loop.at(seconds, world.network.slow.pop, "/v1/leases", None)
    engines_come(world, seconds)


def trainers_away(world: World, seconds: float) -> None:
    """All of them: nobody coordinates, and nobody writes."""
    for pod in world.source_pods:
        pod.crash_agent()
        world.loop.at(seconds, pod.start_agent)
