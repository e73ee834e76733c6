"""From what is there and what was planned to the plan in force. Pure; the operator and plan files share it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from weightsync.plan import Engine, JoinPolicy, Plan, Route, Source, Strategy, Target, Transfer
from weightsync_operator.planning import coordinator, mapping, reasons, term
from weightsync_operator.planning.layouts import Member, Outsider
from weightsync_operator.planning.mapping import Place, SourceKey, Wanted
from weightsync_operator.planning.memo import Memo, StageRoutes
from weightsync_operator.planning.sources import Sources


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asks for, as plans carry it. changed: it differs from what the previous plan was made for."""

    name: str
    initial_gate: Literal["Open", "Closed"] = "Open"
    suspend: bool = False
    join_policy: JoinPolicy = "Peer"
    transfer: Transfer = field(default_factory=Transfer)
    strategy: Strategy = field(default_factory=Strategy)
    changed: bool = False


def compose(
    wish: Wish,
    sources: Sources,
    members: Sequence[Member],
    previous: Plan | None,
    now: int,
    *,
    places: Mapping[str, Place] | None = None,
    memo: Memo | None = None,
) -> Plan | None:
    """The plan in force. now: milliseconds since the epoch, for a term that begins; places: of nodes, by name.

    Where the sources cannot feed every stage, the previous plan's sources and coordinator stay: engines go on being
    synced with whoever is left, and nothing is torn down over a restart of the trainer. Engines come and go in it all
    the same: those that come, be the trainer away for days, find in it whom to read from. None: there never was a
    plan. Equal content has the previous plan's numbers, and equal engines are its very objects.
    """
    memo = memo or Memo()
    places = places or {}
    # Only a relay asks where pods are: without one a pod that moves changes no more of the plan than its routes.
    near = places if wish.transfer.relay.fanout else {}
    if sources.usable:
        pods = tuple(
            pod.model_copy(update={"near": _near(near, sources.nodes.get(pod.uid, ""))}) for pod in sources.pods
        )
        body = _kept(pods, previous)
        engines = _route(sources, members, (previous, memo.routes(previous)), places, near)
        leader = coordinator.choose(previous.coordinator if previous else "", body)
        number = term.next_term(previous, leader, coordinator.life(leader, body), now)
    elif previous is not None:
        body, leader, number = previous.sources, previous.coordinator, previous.term
        engines = previous.engines
        if _feeds_all(body):  # not where a slice of them was lost
            engines = _route(replace(sources, pods=body), members, (previous, memo.routes(previous)), places, near)
    else:
        return None
    plan = Plan(
        name=wish.name,
        term=number,
        generation=0,
        coordinator=leader,
        initial_gate=wish.initial_gate,
        suspend=wish.suspend,
        join_policy=wish.join_policy,
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
    wish = (plan.name, plan.initial_gate, plan.suspend, plan.join_policy, plan.transfer, plan.strategy)
    return (plan.term, plan.coordinator, wish, by_uid, by_leader)


def left_out(members: Sequence[Member], plan: Plan | None) -> list[Outsider]:
    """Members for whose replicas no source had room: the plan lacks them."""
    if plan is None or not _feeds_all(plan.sources):
        return []
    planned = {engine.leader for engine in plan.engines}
    return [
        Outsider(
            member.name,
            reasons.SOURCES_FULL,
            f"engine {member.name}: no trainer pod has room for one more replica of {member.nbytes} bytes per rank: "
            "give trainer pods more memory, or run engines of fewer layouts",
        )
        for member in members
        if member.leader.uid not in planned
    ]


def _kept(pods: tuple[Source, ...], previous: Plan | None) -> tuple[Source, ...]:
    """The pods, as the previous plan's objects where they say the same."""
    known = {source.uid: source for source in previous.sources} if previous else {}
    return tuple(known[pod.uid] if known.get(pod.uid) == pod else pod for pod in pods)


def _route(
    sources: Sources,
    members: Sequence[Member],
    before: tuple[Plan | None, StageRoutes],
    places: Mapping[str, Place],
    near: Mapping[str, Place],
) -> tuple[Engine, ...]:
    """Engines with one route for each rank and stage; without those that fit nowhere. ``sources`` must be usable."""
    (previous, past), stages = before, sources.stages
    wanted = [
        # What each stage owns is known to the sources alone: an even share stands for it.
        Wanted(rank.key, rank.target.program, places.get(rank.pod.node, ()), -(-member.nbytes // stages))
        for member in members
        for rank in member.ranks
    ]
    homes = {uid: places.get(node, ()) for uid, node in sources.nodes.items()}
    feeding = [_of_stage(sources.pods, stage) for stage in range(stages)]
    routes = mapping.map_stages(feeding, wanted, past, homes, sources.room)
    known = {engine.leader: engine for engine in previous.engines} if previous else {}
    made = (
        _engine(member, routes, known.get(member.leader.uid), _near(near, member.leader.node)) for member in members
    )
    return tuple(engine for engine in made if engine is not None)


def _near(places: Mapping[str, Place], node: str) -> Place:
    """Where the node is, the widest label's value first; () where nothing is known of it."""
    place = places.get(node, ())
    return tuple(reversed(place)) if any(place) else ()


def _feeds_all(pods: Sequence[Source]) -> bool:
    """Whether every stage has a rank."""
    ranks = [rank for source in pods for rank in source.ranks]
    return bool(ranks) and {rank.stage for rank in ranks} >= set(range(max(rank.stages for rank in ranks)))


def _of_stage(pods: Sequence[Source], stage: int) -> list[SourceKey]:
    ranks = [(rank.rank, source.uid) for source in pods for rank in source.ranks if rank.stage == stage]
    return [SourceKey(uid, rank) for rank, uid in sorted(ranks)]


def _engine(member: Member, routes: Sequence[mapping.Routes], before: Engine | None, near: Place) -> Engine | None:
    """The engine with its routes; None where one of its ranks fits nowhere."""
    steps = []
    for rank in member.ranks:
        found = [stage[rank.key] for stage in routes if rank.key in stage]
        if len(found) < len(routes):
            return None
        steps.append(found)
    if before is not None and before.near == near and _unchanged(member, steps, before):
        return before
    targets = tuple(
        Target(
            uid=rank.pod.uid,
            pod=rank.pod.name,
            address=rank.address,
            rank=rank.target,
            routes=tuple(Route(stage=n, source=key.uid, rank=key.rank) for n, key in enumerate(found)),
        )
        for rank, found in zip(member.ranks, steps, strict=True)
    )
    return Engine(
        name=member.name,
        leader=member.leader.uid,
        address=member.address,
        incarnation=member.incarnation,
        mode=member.mode,
        near=near,
        targets=targets,
    )


def _unchanged(member: Member, steps: Sequence[Sequence[SourceKey]], before: Engine) -> bool:
    """Whether the engine of the previous plan says the same: to make 10,000 anew takes a second."""
    said = (member.name, member.address, member.incarnation, member.mode)
    if (before.name, before.address, before.incarnation, before.mode) != said:
        return False
    if len(before.targets) != len(member.ranks):
        return False
    return all(
        (target.uid, target.pod, target.address) == (rank.pod.uid, rank.pod.name, rank.address)
        and target.rank == rank.target
        and [(r.stage, r.source, r.rank) for r in target.routes] == [(n, *key) for n, key in enumerate(found)]
        for target, rank, found in zip(before.targets, member.ranks, steps, strict=True)
    )
