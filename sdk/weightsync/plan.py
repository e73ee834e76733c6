"""Who writes to whom: the same types from the cluster (head and slices) and from a file. Pure.

A plan is level-based: it says what should be, not what changed. ``term`` fences, ``generation`` only orders.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from weightsync.announcement import DeviceName, Mode, SourceRank, TargetRank
from weightsync.bounds import MANY, Rank, Term
from weightsync.errors import InputError
from weightsync.records import Record
from weightsync.units import parse_bytes

Uid = Annotated[str, Field(min_length=1, max_length=128)]
Name = Annotated[str, Field(min_length=1, max_length=253)]


MOST_TARGETS = 256  # of an engine
SMALLEST_BUCKET, LARGEST_BUCKET = 4096, 16 * 2**30  # bytes; api/v1alpha1 says the same to the API server

Protocol = Literal["Auto", "RDMA", "TCP"]  # what may carry the bytes; Auto: RDMA where both ends of a route can
JoinPolicy = Literal["Peer", "NextVersion"]
MaxUnavailable = Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=r"^(100|[1-9][0-9]?)%$", max_length=4)]


Near = Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=8)]


class Source(Record):
    """One trainer pod: its agent's address, its ranks, and the RDMA devices that it can use.

    near: values of its node's topology labels, the widest first; only where a relay asks for them.
    """

    uid: Uid
    pod: Name
    address: Annotated[str, Field(max_length=256)]
    ranks: Annotated[tuple[SourceRank, ...], Field(max_length=64)]
    devices: Annotated[tuple[DeviceName, ...], Field(max_length=64)] = ()
    near: Near = ()


class Route(Record):
    """Which source rank writes its stage's shard to the target that holds the route."""

    stage: Rank
    source: Uid
    rank: Rank


class Target(Record):
    """One engine rank: the pod that holds it, and one route for each stage."""

    uid: Uid
    pod: Name
    address: Annotated[str, Field(max_length=256)]
    rank: TargetRank
    routes: Annotated[tuple[Route, ...], Field(max_length=256)]


class Engine(Record):
    """One serving instance. leader: uid of the pod whose agent drives it; incarnation: one life of its process.

    mode: as its leader announced; a Direct one is paused while it is written to. near: of its leader, as a source's.
    """

    name: Name
    leader: Uid
    address: Annotated[str, Field(max_length=256)]
    incarnation: Annotated[str, Field(max_length=128)]
    mode: Mode = "Staged"
    near: Near = ()
    targets: Annotated[tuple[Target, ...], Field(min_length=1, max_length=MOST_TARGETS)]

    @property
    def key(self) -> str:
        """Identity of this life of the engine: what outcomes, joins and memory of versions are keyed by."""
        return f"{self.leader}/{self.incarnation}"


class Rdma(Record):
    """Which RDMA devices are used, and how. None, or no device named: the agent's choice, else Mooncake's.

    devices: the only ones that may be used; gid_index: alike in kind on all nodes; mtu: bytes of a packet, alike on
    all nodes; queue_pairs: to one peer's device.
    """

    devices: Annotated[tuple[DeviceName, ...], Field(max_length=64)] = ()
    gid_index: Annotated[int, Field(ge=0, le=255)] | None = None
    traffic_class: Annotated[int, Field(ge=0, le=255)] | None = None
    service_level: Annotated[int, Field(ge=0, le=15)] | None = None
    mtu: Literal[512, 1024, 2048, 4096] | None = None
    queue_pairs: Annotated[int, Field(ge=1, le=255)] | None = None


class Relay(Record):
    """Engines pass a version on. fanout: how many engines each feeds at most, and the sources; 0: these feed all."""

    fanout: Annotated[int, Field(ge=0, le=64)] = 2


class Transfer(Record):
    """How bytes move. bucket_size: an upper bound (buckets.bucket_size)."""

    protocol: Protocol = "Auto"
    bucket_size: str = "512Mi"
    rdma: Rdma = Rdma()
    relay: Relay = Relay()

    @field_validator("bucket_size")
    @classmethod
    def _bytes(cls, value: str) -> str:
        """A plan that is read is a plan that can be carried out: nobody finds out in the middle of a sync."""
        try:
            count = parse_bytes(value)
        except InputError as error:
            raise ValueError(str(error)) from error
        if not SMALLEST_BUCKET <= count <= LARGEST_BUCKET:
            raise ValueError(f"{value} is no size of a bucket: write {SMALLEST_BUCKET} to {LARGEST_BUCKET} bytes")
        return value

    @property
    def bucket_bytes(self) -> int:
        """bucket_size in bytes."""
        return parse_bytes(self.bucket_size)


class Strategy(Record):
    """When engines switch.

    Barrier: all that are staged by the deadline commit together. Rolling: each when it is staged, at most
    ``max_unavailable`` at a time: a count, or a share of the sync's engines as "25%".
    """

    type: Literal["Barrier", "Rolling"] = "Barrier"
    max_unavailable: MaxUnavailable = "25%"
    deadline_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    pause_mode: Literal["Abort", "Retract", "InPlace"] = "Retract"

    def unavailable(self, engines: int) -> int:
        """How many of so many engines may be away at once: a share is rounded down, and one always may."""
        if isinstance(self.max_unavailable, int):
            return self.max_unavailable
        return max(1, engines * int(self.max_unavailable[:-1]) // 100)


class Plan(Record):
    """Everything that a coordinator needs to run syncs.

    name: namespace/name of the WeightSync, or a plan file's own; coordinator: uid of a source pod, "" while no
    source is ready; join_policy: whether an engine that comes gets the newest version at once, or the next one.
    """

    name: str
    term: Term
    generation: Term
    coordinator: str = ""
    initial_gate: Literal["Open", "Closed"] = "Open"
    suspend: bool = False
    join_policy: JoinPolicy = "Peer"
    transfer: Transfer = Transfer()
    strategy: Strategy = Strategy()
    sources: Annotated[tuple[Source, ...], MANY] = ()
    engines: Annotated[tuple[Engine, ...], MANY] = ()

    @model_validator(mode="after")
    def _known_sources(self) -> "Plan":
        known = {(s.uid, r.rank) for s in self.sources for r in s.ranks}
        for engine in self.engines:
            for target in engine.targets:
                for route in target.routes:
                    if known and (route.source, route.rank) not in known:
                        raise ValueError(
                            f"engine {engine.name}, rank {target.rank.rank}: its route for stage {route.stage} "
                            f"names source {route.source} rank {route.rank}, which the plan does not have"
                        )
        return self

    def devices(self, target: Target) -> dict[str, tuple[str, ...]]:
        """RDMA devices of the pods that write to a target, by uid; without pods that have none."""
        writers = {route.source for route in target.routes}
        return {s.uid: s.devices for s in self.sources if s.uid in writers and s.devices}

    def source(self, uid: str) -> Source | None:
        """The source pod with that uid."""
        return next((s for s in self.sources if s.uid == uid), None)


class PlanFile(Record):
    """A plan without Kubernetes, as agents read it (``weightsync plan`` writes it from an inventory of agents).

    Its term is ignored: the coordinator takes one when it begins. secret_file: the shared secret that agents show
    one another instead of tokens.
    """

    plan: Plan
    secret_file: str = ""
