"""One sync as the coordinator sees it: its members, routes, shards; and the pure questions asked of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from weightsync.digests import program_root, version_root
from weightsync.errors import CoverageError
from weightsync.plan import Engine, Plan
from weightsync.version import Version
from weightsync.wire.v1 import (
    CommitRequest,
    EngineOutcome,
    Grant,
    PlannedRoute,
    RankCommit,
    RouteEnd,
    RouteTransport,
    ShardDigests,
    SyncOrder,
    WriterId,
)

RouteKey = tuple[str, int, str]  # target's pod uid, engine rank, writer key


class MemberState(Enum):
    """One engine within one sync."""

    GRANTING = "its ranks are asked for grants"
    STAGING = "its routes are open"
    STAGED = "every rank has verified every bucket"
    COMMITTING = "its leader was told the decision"
    CURRENT = "it serves the version"
    OUT = "failed, gone or superseded; its outcome says why"


@dataclass
class Member:
    """One engine of the snapshot."""

    engine: Engine
    state: MemberState = MemberState.GRANTING
    grants: dict[int, Grant] = field(default_factory=dict)
    pending: set[RouteKey] = field(default_factory=set)
    outcome: EngineOutcome | None = None
    blameless: bool = False  # its order did not reach a source, or was refused by it: not its fault
    staged_at: float = 0.0
    commit_tries: int = 0
    committing_at: float = 0.0
    retry_at: float | None = None
    nbytes: int = 0
    carried: dict[RouteKey, RouteTransport] = field(default_factory=dict)  # that were verified
    parent: str | None = None  # key of the engine that it reads from; None: sources write to it
    turn: int = 0  # how many it was told to read from so far
    tried: set[str] = field(default_factory=set)  # of them, those that failed it

    @property
    def live(self) -> bool:
        """It still may get the version."""
        return self.state is not MemberState.OUT

    def verified(self, key: RouteKey, end: RouteEnd) -> None:
        """One of its routes carried every byte."""
        self.nbytes += end.nbytes
        way = self.grants[end.rank].ways.get(end.writer.key)
        why = way.why if way is not None else ""
        self.carried[key] = RouteTransport(rank=end.rank, source=end.writer.key, transport=end.transport, why=why)

    def taken(self) -> tuple[RouteTransport, ...]:
        """What its verified routes went over, in a fixed order."""
        return tuple(route for _, route in sorted(self.carried.items()))

    def routes(self) -> set[RouteKey]:
        """Every route that must be verified before the engine is staged."""
        return {
            (target.uid, target.rank.rank, WriterId(uid=route.source, rank=route.rank).key)
            for target in self.engine.targets
            for route in target.routes
        }


@dataclass
class Sync:
    """One version going to a snapshot of engines.

    started: when the first rank called publish(); repair: an already decided version, to those behind.
    """

    id: str
    term: int
    lineage: str
    number: int
    label: str
    plan: Plan
    started: float
    deadline: float
    members: dict[str, Member]
    repair: Version | None = None
    shards: dict[tuple[str, int], ShardDigests] = field(default_factory=dict)
    writers: dict[str, WriterId] = field(default_factory=dict)
    reported: set[tuple[str, str]] = field(default_factory=set)  # (program, writer) whose shard is known
    version: Version | None = None
    error: tuple[str, str] = ("", "")
    roots: dict[str, str] = field(default_factory=dict)
    trees: dict[tuple[tuple[int, str], ...], dict[str, str | None]] = field(default_factory=dict)  # see relaying.py
    failed_others: set[str] = field(default_factory=set)  # keys of engines that failed one that read from them

    @property
    def rolling(self) -> bool:
        """Engines switch one after another, each when it is staged."""
        return self.plan.strategy.type == "Rolling"

    @property
    def each(self) -> bool:
        """It is decided without waiting for engines: a repair was decided before, and Rolling waits for none."""
        return self.rolling or self.repair is not None

    def room(self, now: float, stall_seconds: float) -> int | None:
        """How many more may be told to commit now; None: all of them.

        A commit that is unanswered for a stall timeout keeps its place no longer: its engine is away in any case.
        """
        if not self.rolling:
            return None
        most = self.plan.strategy.unavailable(len(self.members))
        away = sum(now < m.committing_at + stall_seconds for m in self.live(MemberState.COMMITTING))
        return max(0, most - away)

    def live(self, *states: MemberState) -> list[Member]:
        """Members in one of the states; without any: all that still may get the version."""
        return [m for m in self.members.values() if (m.state in states if states else m.live)]

    def out(self, member: Member, outcome: str, reason: str, message: str) -> None:
        """Take one engine out; the others go on."""
        if member.live:
            member.state = MemberState.OUT
            member.outcome = EngineOutcome.model_validate(
                {
                    "engine": member.engine.name,
                    "outcome": outcome,
                    "mode": member.engine.mode,
                    "reason": reason,
                    "message": message,
                    "routes": member.taken(),
                }
            )

    def orders(self, term: int, coordinator: str, stall_seconds: float) -> dict[str, tuple[WriterId, SyncOrder]]:
        """Each writer's order, by writer key: all its routes to members that granted, and that nobody relays to."""
        routes: dict[str, list[PlannedRoute]] = {}
        for member in [m for m in self.live(MemberState.STAGING) if m.parent is None]:
            for target in member.engine.targets:
                grant = member.grants[target.rank.rank]
                for route in target.routes:
                    writer = WriterId(uid=route.source, rank=route.rank)
                    self.writers[writer.key] = writer
                    way = grant.ways.get(writer.key)
                    routes.setdefault(writer.key, []).append(
                        PlannedRoute(
                            engine=member.engine.name,
                            target=target.uid,
                            rank=target.rank.rank,
                            address=target.address,
                            program=target.rank.program,
                            layout=target.rank.layout,
                            grant=grant.grant,
                            region=way.region if way is not None else grant.region,
                            transport=way.transport if way is not None else None,
                        )
                    )
        return {
            key: (
                self.writers[key],
                SyncOrder(
                    sync=self.id,
                    term=term,
                    coordinator=coordinator,
                    lineage=self.lineage,
                    number=self.number,
                    bucket_size=self.plan.transfer.bucket_bytes,
                    deadline_seconds=self.plan.strategy.deadline_seconds,
                    stall_seconds=stall_seconds,
                    programs=tuple(sorted({r.program for r in planned})),
                    routes=tuple(planned),
                    rdma=self.plan.transfer.rdma,
                ),
            )
            for key, planned in routes.items()
        }

    def stages(self, program: str) -> set[int]:
        """Pipeline stages that feed a program, as the plan has them."""
        return {
            route.stage
            for member in self.members.values()
            for target in member.engine.targets
            if target.rank.program == program
            for route in target.routes
        }

    def add_shard(self, shard: ShardDigests) -> str:
        """Note a shard's digests. Returns why they cannot be, where two sources of a stage differ."""
        known = self.shards.setdefault((shard.program, shard.stage), shard)
        self.reported.add((shard.program, shard.writer.key))
        cuts = [[(bucket.offset, bucket.nbytes) for bucket in each.buckets] for each in (known, shard)]
        if cuts[0] != cuts[1]:
            return (
                f"ranks {known.writer.rank} and {shard.writer.rank} both publish stage {shard.stage}, and cut it "
                f"into {len(known.buckets)} and {len(shard.buckets)} buckets: give their agents one release"
            )
        if known.buckets != shard.buckets:
            return (
                f"ranks {known.writer.rank} and {shard.writer.rank} both publish stage {shard.stage}, "
                "and their bytes differ: data-parallel ranks must hold equal weights when they publish"
            )
        return ""

    def decide(self) -> tuple[Version, dict[str, str]] | None:
        """The version and its programs' roots, once every source that writes to the members has reported its shard.

        The members are those that are staged; where engines are not waited for, all that still may be. Raises
        CoverageError where a repair's bytes are not those of the version that it repairs.
        """
        members = self.live() if self.each else self.live(MemberState.STAGED)
        served = {
            (target.rank.program, WriterId(uid=route.source, rank=route.rank).key)
            for member in members
            if member.parent is None
            for target in member.engine.targets
            for route in target.routes
        }
        if not served <= self.reported:
            return None
        roots = {}
        for program in {target.rank.program for member in members for target in member.engine.targets}:
            shards = [self.shards.get((program, stage)) for stage in self.stages(program)]
            if any(shard is None for shard in shards):
                return None
            roots[program] = program_root(b for shard in shards if shard is not None for b in shard.buckets)
        if self.repair is not None:
            return self.repair, self._repaired(roots)
        root = version_root(self.lineage, self.number, roots)
        return Version(lineage=self.lineage, number=self.number, root=root), roots

    def _repaired(self, roots: Mapping[str, str]) -> dict[str, str]:
        for program, root in roots.items():
            if self.roots.get(program) != root:
                raise CoverageError(
                    f"the sources' bytes of program {program} are no longer those of {self.lineage}.{self.number}"
                )
        return dict(self.roots)

    def commit_request(self, member: Member, term: int, coordinator: str) -> CommitRequest:
        """What the member's leader is told; needs a decided version."""
        if self.version is None:
            raise CoverageError(f"sync {self.id} has not been decided")
        return CommitRequest(
            term=term,
            coordinator=coordinator,
            sync=self.id,
            target=member.engine.leader,
            version=self.version,
            label=self.label,
            programs=self.roots,
            ranks=tuple(
                RankCommit(
                    rank=t.rank.rank, grant=member.grants[t.rank.rank].grant, program=t.rank.program, pod=t.uid
                )
                for t in member.engine.targets
            ),
            strategy=self.plan.strategy,
        )

    def outcomes(self) -> tuple[EngineOutcome, ...]:
        """Exactly one for each engine of the snapshot, by name."""
        return tuple(m.outcome for _, m in sorted(self.members.items()) if m.outcome is not None)


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest-rank percentile; 0.0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
