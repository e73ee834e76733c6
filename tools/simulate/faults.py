"""What goes wrong in a schedule. A fault strikes at the n-th event, lasts some virtual seconds, and is undone.

Faults are drawn before the schedule starts, so that any of them can be left out: that is how a failure is shrunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from tools.simulate import ambush, lures
from tools.simulate.memory import RUBBISH, ArenaFile
from tools.simulate.network import CALM
from weightsync_agent.journal.records import BASE

if TYPE_CHECKING:
    from tools.simulate.member_side import MemberPod
    from tools.simulate.world import World


@dataclass(frozen=True, slots=True)
class Fault:
    """kind: a key of KINDS; at: after so many events; seconds: how long; pick: chooses whom; extra: how."""

    kind: str
    at: int
    seconds: float
    pick: float
    extra: float

    def __str__(self) -> str:
        return f"{self.kind} at event {self.at}, {self.seconds:.2f} s, pick {self.pick:.2f}, extra {self.extra:.2f}"


WEIGHTS = {
    "storm": 4,
    "slow network": 3,
    "repeats": 3,
    "echoes": 4,
    "cut off": 4,
    "late bytes": 4,
    "stall": 5,
    "first contact held": 3,
    "write fails": 5,
    "corruption": 4,
    "target agent dies": 8,
    "target agent hangs": 3,
    "target worker dies": 4,
    "member agent dies": 5,
    "member agent hangs": 3,
    "member cut off": 4,
    "member replaced": 4,
    "member worker dies": 2,
    "source agent dies": 7,
    "source agent hangs": 2,
    "source worker dies": 4,
    "engine dies": 6,
    "engine silent": 5,
    "engine call fails": 8,
    "engine call half done": 8,
    "engine slow": 3,
    "engine repacks": 2,
    "journal torn": 4,
    "slow disk": 4,
    "disk full": 3,
    "worker start fails": 2,
    "another coordinator": 5,
    "contested": 3,
    "stale plans": 4,
    "operator down": 2,
    "made anew": 3,
    "engine added": 3,
    "engine removed": 3,
    "engine replaced": 3,
    "trainers away": 4,
    "trainer dies": 4,
    "rank restarts": 2,
    "bad input": 3,
    "no room": 2,
}
AMBUSH = "ambush"
STEERED = 0.3  # share of schedules that aim at rare moments


Strike = Callable[["World", Fault], None]


def draw(rng: Random, window: int) -> list[Fault]:
    """One to five faults in the first ``window`` events."""
    kinds = list(WEIGHTS)
    count = rng.choice((1, 1, 2, 2, 3, 4, 5))
    chosen = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds], k=count)
    faults, at = list[Fault](), 0
    for kind in chosen:
        close = at and rng.random() < 0.5  # faults meet more often than they would by chance
        at = at + rng.randrange(12) if close else rng.randrange(5, window)
        faults.append(Fault(kind, at, 0.1 + 2.0 * rng.random() ** 2, rng.random(), rng.random()))
    if rng.random() < STEERED:
        at = rng.randrange(10, window)
        for _ in range(rng.choice((1, 2))):  # another moment may come of the first
            faults.append(Fault(AMBUSH, at, 2.0 + 3.0 * rng.random(), rng.random(), rng.random()))
    return sorted(faults, key=lambda fault: fault.at)


def strike(world: World, fault: Fault) -> None:
    """Do it, and arrange for its end."""
    if not world.engine_pods:
        return
    world.loop.note("fault", fault.kind, f"for {fault.seconds:.2f} s")
    world.struck.append(fault.kind)
    KINDS[fault.kind](world, fault)


def _until(world: World, fault: Fault, undo: Callable[[], object]) -> None:
    world.faulty += 1

    def end() -> None:
        world.faulty -= 1
        world.last_fault = world.loop.now
        undo()

    world.loop.at(fault.seconds, end)


def _weather(**change: float) -> Strike:
    def strike_(world: World, fault: Fault) -> None:
        net = world.network
        net.weather = replace(net.weather, **change)
        _until(world, fault, lambda: setattr(net, "weather", CALM))

    return strike_


def _cut_off(world: World, fault: Fault) -> None:
    addresses = sorted(world.network.hosts)
    one = addresses[int(fault.pick * len(addresses))]
    other = "*" if fault.extra < 0.4 else addresses[int(fault.extra * len(addresses))]
    if one == other:
        other = "*"
    pair = frozenset((one, other))
    world.network.cut.add(pair)
    _until(world, fault, lambda: world.network.cut.discard(pair))


def _late_bytes(world: World, fault: Fault) -> None:
    world.wires.late = 0.7
    _until(world, fault, lambda: setattr(world.wires, "late", 0.0))


def _stall(world: World, fault: Fault) -> None:
    """Nothing lands for a while: longer than the stall timeout, more often than not."""
    sessions = sorted(world.wires.sessions)
    if not sessions:
        return
    session = sessions[int(fault.pick * len(sessions))]
    seconds = 0.3 + 2 * fault.seconds
    world.wires.stalls[session] = world.loop.now + seconds
    _until(world, replace(fault, seconds=seconds), lambda: world.wires.stalls.pop(session, None))


def _held(world: World, fault: Fault) -> None:
    """A worker that meets that peer for the first time takes no other write meanwhile."""
    sessions = sorted(world.wires.sessions)
    if sessions:
        session = sessions[int(fault.pick * len(sessions))]
        world.wires.held[session] = world.loop.now + 2 * fault.seconds
        _until(world, replace(fault, seconds=2 * fault.seconds), lambda: world.wires.held.pop(session, None))


def _write_fails(world: World, fault: Fault) -> None:
    world.wires.fail += 1 + int(2 * fault.extra)
    _until(world, fault, lambda: setattr(world.wires, "fail", 0))


def _corruption(world: World, fault: Fault) -> None:
    world.wires.corrupt += 1 + int(7 * fault.extra * fault.extra)
    _until(world, fault, lambda: setattr(world.wires, "corrupt", 0))


def _spoil(arenas: list[ArenaFile]) -> None:
    """Somebody else wrote into the volume while nobody watched; not into the copy of an engine's own checkpoint."""
    for arena in arenas:
        if arena.header.version == BASE:
            continue
        arena.content[0] = (RUBBISH,) * len(arena.content[0])


def _target_dies(world: World, fault: Fault) -> None:
    pod = world.engine_pods[int(fault.pick * len(world.engine_pods))]
    pod.crash_agent(torn=fault.extra < 0.3)

    def end() -> None:
        if fault.extra > 0.85 and not pod.agent.life.alive:
            _spoil([arena for arenas in pod.volume.arenas.values() for arena in arenas])
        pod.start_agent()

    _until(world, replace(fault, seconds=0.2 + fault.seconds), end)


def _target_hangs(world: World, fault: Fault) -> None:
    pod = world.engine_pods[int(fault.pick * len(world.engine_pods))]
    world.freeze(pod.agent.life, 0.3 + 3 * fault.seconds)
    _until(world, replace(fault, seconds=0.3 + 3 * fault.seconds), lambda: None)


def _target_worker(world: World, fault: Fault) -> None:
    pod = world.engine_pods[int(fault.pick * len(world.engine_pods))]
    for target in list(pod.agent.targets.values())[:1]:
        if target.worker is not None:
            target.worker.kill()
    _until(world, fault, lambda: None)


def _source_dies(world: World, fault: Fault) -> None:
    pod = world.source_pods[int(fault.pick * len(world.source_pods))]
    pod.crash_agent()
    if fault.extra < 0.2:
        _spoil([arena for kept in pod.volume.replicas.values() for arena, _ in kept.values()])
    _until(world, fault, pod.start_agent)


def _source_hangs(world: World, fault: Fault) -> None:
    pod = world.source_pods[int(fault.pick * len(world.source_pods))]
    world.freeze(pod.agent.life, 0.3 + 3 * fault.seconds)
    _until(world, replace(fault, seconds=0.3 + 3 * fault.seconds), lambda: None)


def _source_worker(world: World, fault: Fault) -> None:
    pod = world.source_pods[int(fault.pick * len(world.source_pods))]
    pod.agent.kill_worker(fault.extra)
    _until(world, fault, lambda: None)


def _member(world: World, fault: Fault) -> MemberPod | None:
    """The second pod of an engine that has one."""
    members = [pod.member for pod in world.engine_pods if pod.member is not None]
    return members[int(fault.pick * len(members))] if members else None


def _member_dies(world: World, fault: Fault) -> None:
    member = _member(world, fault)
    if member is not None:
        member.crash_agent()
        _until(world, fault, member.start_agent)


def _member_hangs(world: World, fault: Fault) -> None:
    member = _member(world, fault)
    if member is not None:
        world.freeze(member.agent.life, 0.3 + 3 * fault.seconds)
        _until(world, replace(fault, seconds=0.3 + 3 * fault.seconds), lambda: None)


def _member_cut_off(world: World, fault: Fault) -> None:
    """From its leader alone: coordinator and sources reach both."""
    member = _member(world, fault)
    if member is not None:
        pair = frozenset((member.address, member.leader.address))
        world.network.cut.add(pair)
        seconds = fault.seconds * (1 + 3 * fault.extra)
        _until(world, replace(fault, seconds=seconds), lambda: world.network.cut.discard(pair))


def _member_replaced(world: World, fault: Fault) -> None:
    """Its pod is deleted, and another takes its place: all of the engine's processes begin anew."""
    member = _member(world, fault)
    if member is not None:
        member.replace()
        _until(world, replace(fault, seconds=3.5 * fault.extra + fault.seconds), member.leader.start_engine)


def _member_worker(world: World, fault: Fault) -> None:
    member = _member(world, fault)
    for target in list(member.agent.targets.values()) if member is not None else ():
        if target.worker is not None:
            target.worker.kill()
        _until(world, fault, lambda: None)


def _engine_dies(world: World, fault: Fault) -> None:
    pod = world.engine_pods[int(fault.pick * len(world.engine_pods))]
    if not pod.engine.alive:
        return
    pod.engine.end_life()
    # Most engines start no faster than two looks of their agent.
    seconds = 3.5 + fault.seconds if fault.extra < 0.6 else 0.3 + fault.seconds
    _until(world, replace(fault, seconds=seconds), pod.start_engine)


def _engine_silent(world: World, fault: Fault) -> None:
    engine = world.engine_pods[int(fault.pick * len(world.engine_pods))].engine
    engine.silent_until = max(engine.silent_until, world.loop.now + 2 * fault.seconds)
    _until(world, replace(fault, seconds=2 * fault.seconds), lambda: None)


def _engine_slow(world: World, fault: Fault) -> None:
    engine = world.engine_pods[int(fault.pick * len(world.engine_pods))].engine
    engine.slow_until = max(engine.slow_until, world.loop.now + 1.0 + 2 * fault.seconds)
    _until(world, replace(fault, seconds=1.0 + 2 * fault.seconds), lambda: None)


def _engine_repacks(world: World, fault: Fault) -> None:
    """It cannot be certified; somebody mends and restarts it in the end."""
    pod = world.engine_pods[int(fault.pick * len(world.engine_pods))]
    engine = pod.engine
    engine.repacks = True
    if engine.alive and fault.extra < 0.7:
        engine.end_life()
        world.loop.at(fault.seconds, pod.start_engine)

    def end() -> None:
        engine.repacks = False
        if engine.alive:
            engine.end_life()
        world.faulty += 1
        world.loop.at(3.5, restarted, world.loop.now)

    def restarted(ended: float) -> None:
        thawed = pod.agent.life.frozen_until
        # A restart that the agent cannot see leaves it refusing, see the docs: while it was stopped for a part of the
        # silence, or too short, since another fault has started the engine meanwhile.
        if thawed > ended or engine.alive:
            if engine.alive:
                engine.end_life()
            again = max(thawed, world.loop.now)
            world.loop.at(again - world.loop.now + 3.5, restarted, again)
            return
        world.faulty -= 1
        pod.start_engine()

    _until(world, replace(fault, seconds=2.0 + fault.seconds), end)


def _slow_disk(world: World, fault: Fault) -> None:
    world.disk_seconds = 0.05 + 0.6 * fault.extra
    _until(world, replace(fault, seconds=2 * fault.seconds), lambda: setattr(world, "disk_seconds", 0.004))


STEPS = ("", "", "pause", "set_version", "begin", "apply", "apply", "end", "flush", "resume", "resume")


def _call_fails(*, effect: bool) -> Strike:
    def strike_(world: World, fault: Fault) -> None:
        engine = world.engine_pods[int(fault.pick * len(world.engine_pods))].engine
        engine.fail_calls.append((STEPS[int(fault.extra * len(STEPS))], effect))
        _until(world, fault, engine.fail_calls.clear)

    return strike_


def _journal_torn(world: World, fault: Fault) -> None:
    pod = world.engine_pods[int(fault.pick * len(world.engine_pods))]
    pod.crash_agent(torn=True)
    pod.volume.torn = True
    _until(world, fault, pod.start_agent)


def _chance(name: str, chance: float) -> Strike:
    def strike_(world: World, fault: Fault) -> None:
        world.chances[name] = chance
        _until(world, fault, lambda: world.chances.pop(name, None))

    return strike_


def _another_coordinator(world: World, fault: Fault) -> None:
    """The old one goes on, and does not know for a while."""
    plan = world.planner.plan
    if plan is None or len(world.source_pods) < 2:
        world.rotate(fault)
        return
    world.planner.shun(plan.coordinator)
    if fault.extra < 0.7:
        for pod in world.source_pods:
            if pod.uid == plan.coordinator:
                pod.deaf_until = world.loop.now + 2 * fault.seconds

    def end() -> None:
        world.planner.shunned = set()
        for pod in world.source_pods:
            pod.planned()

    _until(world, replace(fault, seconds=2 * fault.seconds), end)


def _contested(world: World, fault: Fault) -> None:
    """A hand-over while the old coordinator's messages are on their way."""
    world.network.weather = replace(world.network.weather, late=0.6, slow=1.2, twice=0.2)
    _until(world, replace(fault, seconds=1.0 + fault.seconds), lambda: setattr(world.network, "weather", CALM))
    world.loop.at(0.02 + 0.2 * fault.pick, _another_coordinator, world, replace(fault, extra=0.5 * fault.extra))


def _stale_plans(world: World, fault: Fault) -> None:
    world.planner.spread = 1.0

    def end() -> None:
        world.planner.spread = world.planner.usual

    _until(world, fault, end)


def _operator_down(world: World, fault: Fault) -> None:
    world.planner.down_until = world.loop.now + fault.seconds
    _until(world, fault, lambda: None)


def _made_anew(world: World, fault: Fault) -> None:
    """The WeightSync is deleted and created again, with all pods alive; now and then under another coordinator.

    The old one goes on in the deleted WeightSync's name for as long as it does not hear of it.
    """
    planner = world.planner
    former = planner.plan.coordinator if planner.plan is not None else ""
    for pod in world.source_pods:
        if pod.uid == former and fault.extra < 0.5:
            pod.deaf_until = world.loop.now + 3 * fault.seconds
    planner.delete()
    if fault.pick < 0.5 and len(world.source_pods) > 1:
        planner.shunned = {former}

    def end() -> None:
        planner.shunned = set()
        for pod in world.source_pods:
            pod.planned()

    world.loop.at(0.02 + fault.seconds * fault.pick, planner.make)
    _until(world, replace(fault, seconds=0.1 + 3 * fault.seconds), end)


def _ambush(world: World, fault: Fault) -> None:
    """See ambush.py."""
    kind = ambush.kind_of(fault.pick)
    world.loop.note("ambush", "waits for", kind.name)
    waits = ambush.Ambush(world, kind)
    world.ambushes.append(waits)
    if kind.prepare is not None:
        kind.prepare(world, fault.seconds)
    if kind.beside:
        KINDS[kind.beside](world, replace(fault, seconds=0.3, extra=0.3))
    _until(world, fault, lambda: world.ambushes.remove(waits))


def _trainer_dies(world: World, fault: Fault) -> None:
    if not world.trainer.number or not world.trainer.life.alive:
        return
    world.trainer.crash()
    _until(world, fault, world.trainer.start)


def _rank_restarts(world: World, fault: Fault) -> None:
    trainer = world.trainer
    rank = trainer.ranks[int(fault.pick * len(trainer.ranks))]
    trainer.restart_rank(rank)
    _until(world, fault, lambda: None)


def _engine_added(world: World, fault: Fault) -> None:
    world.add_engine()
    _until(world, fault, lambda: None)


def _engine_removed(world: World, fault: Fault) -> None:
    if len(world.engine_pods) > 1:
        world.remove_engine(world.engine_pods[int(fault.pick * len(world.engine_pods))])
    _until(world, fault, lambda: None)


def _engine_replaced(world: World, fault: Fault) -> None:
    pod = world.engine_pods[int(fault.pick * len(world.engine_pods))]
    world.remove_engine(pod)
    world.loop.at(0.05, world.add_engine, pod.address)
    _until(world, fault, lambda: None)


def _trainers_away(world: World, fault: Fault) -> None:
    """All trainer pods are gone for a while, and engines come meanwhile."""
    seconds = 1.0 + 3 * fault.seconds
    lures.trainers_away(world, seconds)
    for _ in range(1 + int(2 * fault.extra)):
        world.loop.at(0.5 * fault.pick, world.add_engine)
    _until(world, replace(fault, seconds=seconds), lambda: None)


KINDS: dict[str, Strike] = {
    "storm": _weather(loss=0.25, late=0.2, slow=1.5),
    "slow network": _weather(late=0.5, slow=1.6),
    "repeats": _weather(twice=0.4, late=0.3, slow=0.6),
    "echoes": _chance("echo", 0.3),
    "cut off": _cut_off,
    "late bytes": _late_bytes,
    "stall": _stall,
    "first contact held": _held,
    "write fails": _write_fails,
    "corruption": _corruption,
    "target agent dies": _target_dies,
    "target agent hangs": _target_hangs,
    "target worker dies": _target_worker,
    "member agent dies": _member_dies,
    "member agent hangs": _member_hangs,
    "member cut off": _member_cut_off,
    "member replaced": _member_replaced,
    "member worker dies": _member_worker,
    "source agent dies": _source_dies,
    "source agent hangs": _source_hangs,
    "source worker dies": _source_worker,
    "engine dies": _engine_dies,
    "engine silent": _engine_silent,
    "engine call fails": _call_fails(effect=False),
    "engine call half done": _call_fails(effect=True),
    "engine slow": _engine_slow,
    "engine repacks": _engine_repacks,
    "journal torn": _journal_torn,
    "slow disk": _slow_disk,
    "disk full": _chance("disk full", 0.6),
    "worker start fails": _chance("worker start fails", 0.7),
    "another coordinator": _another_coordinator,
    "contested": _contested,
    "stale plans": _stale_plans,
    "operator down": _operator_down,
    "made anew": _made_anew,
    "engine added": _engine_added,
    "engine removed": _engine_removed,
    "engine replaced": _engine_replaced,
    "trainers away": _trainers_away,
    "trainer dies": _trainer_dies,
    "rank restarts": _rank_restarts,
    "bad input": _chance("bad input", 0.5),
    "no room": _chance("no room", 0.7),
    AMBUSH: _ambush,
}
