"""Which engines of one sync get a version from which other engine, and who comes next where that one fails. Pure.

- a tree (relay_tree.py) spans the engines that hold the same programs rank by rank, have granted, and whose agents
  relay; of one pod each, and staged. Its roots, and every other engine, are written to by the sources;
- where the plan says where pods are, a version crosses into each zone once (relay_tree.py);
- an engine that has verified all of it depends on nobody any more, whatever becomes of those above it;
- whose parent is taken out, or fails it, turns to another one; to none twice. Where none is left it is taken out, and
  the sources write to it in the repair that follows.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from weightsync.plan import Engine
from weightsync.wire.v1 import MOST_TURNS, RelayEnd, RelayOrder, RelayRank, RouteTransport
from weightsync_agent.protocol import relay_tree
from weightsync_agent.protocol.sync import Member, MemberState, RouteKey, Sync

Group = tuple[tuple[int, str], ...]  # (rank, program) of every rank
Tree = relay_tree.Tree

RELAYED = "relayed"  # in place of a writer's key
LOST = "RelayLost"
_GIVES = (MemberState.STAGING, MemberState.STAGED, MemberState.COMMITTING, MemberState.CURRENT)


def group(engine: Engine) -> Group:
    """Engines of one group can take each other's bytes, each rank the same rank's."""
    return tuple(sorted((target.rank.rank, target.rank.program) for target in engine.targets))


def able(member: Member, protocol: str) -> bool:
    """It can pass on and be passed on to. protocol: the plan's; what reads takes the agents' own transport."""
    alone = all(target.uid == member.engine.leader for target in member.engine.targets)
    if member.engine.mode != "Staged" or not alone or not member.grants:
        return False
    for grant in member.grants.values():
        own = grant.theirs.transport
        others = {way.transport for way in grant.ways.values()} - {own}
        if not grant.relays or others or protocol not in ("Auto", own.upper()):
            return False
    return True


def plant(sync: Sync, suspects: Collection[str], previous: Mapping[Group, Tree]) -> None:
    """Give members that have granted their parents, as the sync's plan wants it. previous: trees of the last sync.

    One that lends to a joiner feeds nobody while others can, as a suspect: its link is in use.
    """
    transfer = sync.plan.transfer
    if not transfer.relay.fanout:
        return
    lending = {key for key, m in sync.members.items() if any(grant.lends for grant in m.grants.values())}
    for member in sync.live(MemberState.STAGING):
        if able(member, transfer.protocol):
            sync.trees.setdefault(group(member.engine), {})[member.engine.key] = None
    for name, members in sync.trees.items():
        before = previous.get(name)
        sync.trees[name] = relay_tree.tree(
            [relay_tree.Place(key, sync.members[key].engine.near) for key in members],
            transfer.relay.fanout,
            sources=[source.near for source in sync.plan.sources if source.near],
            suspects={*suspects, *lending},
            previous=before if before is not None and _fits(before, transfer.relay.fanout) else None,
        )
        for key, parent in sync.trees[name].items():
            if parent is not None:
                _hang(sync.members[key], parent)


def _fits(tree: Tree, fanout: int) -> bool:
    """Nobody feeds more than so many: a tree that was mended, or is of another fanout, may have some who do."""
    return max(Counter(tree.values()).values(), default=0) <= fanout


def _hang(member: Member, parent: str) -> None:
    member.parent = parent
    member.turn += 1
    member.pending = {_key(member)}


def _key(member: Member) -> RouteKey:
    return member.engine.leader, -1, RELAYED


def whole(sync: Sync) -> dict[str, str | None]:
    """All trees in one, by engine key."""
    return {key: parent for tree in sync.trees.values() for key, parent in tree.items()}


def waiting(sync: Sync) -> Iterator[Member]:
    """Members that read from another one."""
    return (member for member in sync.live(MemberState.STAGING) if member.parent is not None)


def feeders(sync: Sync) -> list[set[str]]:
    """Uids of the leaders of engines that others read from now, by tree."""
    parents = {member.parent for member in waiting(sync)}
    return [{sync.members[key].engine.leader for key in tree.keys() & parents} for tree in sync.trees.values()]


def orphans(sync: Sync) -> list[Member]:
    """Those whose parent was taken out."""
    return [member for member in waiting(sync) if sync.members[member.parent or ""].state not in _GIVES]


def turn(sync: Sync, member: Member) -> bool:
    """Hang it below another engine, which gives and has not failed it before; whether there is one."""
    name, key = group(member.engine), member.engine.key
    tree = dict(sync.trees[name])
    # Who has all of it waits for nobody: it gives as a root does.
    for each in tree:
        if sync.members[each].state in _GIVES and sync.members[each].state is not MemberState.STAGING:
            tree[each] = None
    member.tried.add(member.parent or "")
    gone = {each for each in tree if sync.members[each].state not in _GIVES} | (member.tried & tree.keys())
    found = next(iter(relay_tree.parents(tree, key, gone=gone)), None)
    if found is None or member.turn >= MOST_TURNS:
        return False
    sync.trees[name] = {**sync.trees[name], key: found}
    _hang(member, found)
    return True


def order(sync: Sync, member: Member, coordinator: str, stall_seconds: float, now: float) -> RelayOrder:
    """What its leader is told."""
    parent = sync.members[member.parent or ""]
    return RelayOrder(
        term=sync.term,
        coordinator=coordinator,
        sync=sync.id,
        turn=member.turn,
        target=member.engine.leader,
        uid=parent.engine.leader,
        engine=parent.engine.name,
        address=parent.engine.address,
        ranks=tuple(
            RelayRank(rank=rank, grant=grant.grant, parent=parent.grants[rank].grant)
            for rank, grant in sorted(member.grants.items())
        ),
        deadline_seconds=max(0.0, sync.deadline - now),
        stall_seconds=stall_seconds,
    )


def verified(sync: Sync, member: Member, end: RelayEnd) -> None:
    """It has read every byte."""
    member.pending.clear()
    member.nbytes += end.nbytes
    engine = sync.members[member.parent or ""].engine.name
    for target in member.engine.targets:
        carried = RouteTransport(rank=target.rank.rank, source="", transport=end.transport, engine=engine)
        member.carried[target.uid, target.rank.rank, RELAYED] = carried
