"""From what is there and what was planned to the plan in force. Pure; the operator and plan files share it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from weightsync.plan import Engine, Plan, Route, Source, Strategy, Target, Transfer
from weightsync_operator.planning import coordinator, mapping, term
from weightsync_operator.planning.layouts import Member
from weightsync_operator.planning.mapping import SourceKey, TargetKey, Wanted
from weightsync_operator.planning.sources import Sources

StageRoutes = dict[int, mapping.Routes]


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asks for, as plans carry it. changed: it differs from what the previous plan was made for."""

    name: str
    initial_gate: Literal["Open", "Closed"] = "Open"
    suspend: bool = False
    transfer: Transfer = field(default_factory=Transfer)
    strategy: Strategy = field(default_factory=Strategy)
    changed: bool = False


def compose(wish: Wish, sources: Sources, members: Sequence[Member], previous: Plan | None, now: int) -> Plan | None:
    """The plan in force. now: milliseconds since the epoch, for a term that begins.

    Where the sources cannot feed every stage, the previous plan's sources, engines and coordinator stay: engines that
    are known go on being synced with whoever is left, and nothing is torn down over a restart of the trainer. None:
    there never was a plan. Equal content has the previous plan's numbers.
    """
    if sources.usable:
        body = sources.pods
        engines = route(sources, members, previous)
        leader = coordinator.choose(previous.coordinator if previous else "", body)
        number = term.next_term(previous, leader, coordinator.life(leader, body), now)
    elif previous is not None:
        body, engines, leader, number = previous.sources, previous.engines, previous.coordinator, previous.term
    else:
        return None
    plan = Plan(
        name=wish.name,
        term=number,
        generation=0,
        coordinator=leader,
        initial_gate=wish.initial_gate,
        suspend=wish.suspend,
        transfer=wish.transfer,
        strategy=wish.strategy,
        sources=body,
        engines=engines,
    )
    changed = wish.changed or previous is None or not same_content(plan, previous)
    return plan.model_copy(update={"generation": term.next_generation(previous, changed=changed)})


def same_content(a: Plan, b: Plan) -> bool:
    """Whether two plans say the same, whatever their generations and the order of their lists."""
    return _content(a) == _content(b)


def _content(plan: Plan) -> tuple[object, ...]:
    by_uid = {source.uid: source for source in plan.sources}
    by_leader = {engine.leader: engine for engine in plan.engines}
    wish = (plan.name, plan.initial_gate, plan.suspend, plan.transfer, plan.strategy)
    return (plan.term, plan.coordinator, wish, by_uid, by_leader)


def route(sources: Sources, members: Sequence[Member], previous: Plan | None) -> tuple[Engine, ...]:
    """Engines with one route for each rank and stage. ``sources`` must be usable."""
    wanted = [
        Wanted(TargetKey(rank.pod.uid, rank.target.rank), rank.target.program)
        for member in members
        for rank in member.ranks
    ]
    past = previous_routes(previous)
    routes = {
        stage: mapping.map_stage(_of_stage(sources.pods, stage), wanted, past.get(stage, {}))
        for stage in range(sources.stages)
    }
    return tuple(_engine(member, routes) for member in members)


def previous_routes(plan: Plan | None) -> StageRoutes:
    """Stage -> target -> source of a plan."""
    found: StageRoutes = {}
    for engine in plan.engines if plan else ():
        for target in engine.targets:
            key = TargetKey(target.uid, target.rank.rank)
            for step in target.routes:
                found.setdefault(step.stage, {})[key] = SourceKey(step.source, step.rank)
    return found


def _of_stage(pods: Sequence[Source], stage: int) -> list[SourceKey]:
    ranks = [(rank.rank, source.uid) for source in pods for rank in source.ranks if rank.stage == stage]
    return [SourceKey(uid, rank) for rank, uid in sorted(ranks)]


def _engine(member: Member, routes: StageRoutes) -> Engine:
    targets = []
    for rank in member.ranks:
        key = TargetKey(rank.pod.uid, rank.target.rank)
        steps = tuple(
            Route(stage=stage, source=routes[stage][key].uid, rank=routes[stage][key].rank)
            for stage in sorted(routes)
        )
        targets.append(
            Target(uid=rank.pod.uid, pod=rank.pod.name, address=rank.address, rank=rank.target, routes=steps)
        )
    return Engine(
        name=member.name,
        leader=member.leader.uid,
        address=member.address,
        incarnation=member.incarnation,
        targets=tuple(targets),
    )
