"""The spec of a WeightSync: what a user writes. Pure."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from weightsync import plan
from weightsync.announcement import DeviceName
from weightsync.records import WireRecord
from weightsync.units import QUANTITY_PATTERN

NAME_LIMIT = 63  # the name is the value of a label on the slices
SMALLEST_BUCKET = "4Ki"
LARGEST_BUCKET = "16Gi"

LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=LABEL_KEY)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)]


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules as (rule, message): a message says what to change."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]}


class Requirement(WireRecord):
    """One expression over a label."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : true",
                "operators In and NotIn compare with values: list at least one in values",
            ),
            (
                "self.operator in ['Exists', 'DoesNotExist'] ? !has(self.values) || size(self.values) == 0 : true",
                "operators Exists and DoesNotExist look at the key only: remove values",
            ),
        )
    )

    key: Annotated[LabelKey, Field(description="The label's key.")]
    operator: Annotated[
        Literal["In", "NotIn", "Exists", "DoesNotExist"], Field(description="How the label is compared with values.")
    ]
    values: Annotated[
        tuple[LabelValue, ...], Field(max_length=32, description="What In and NotIn compare with; else left out.")
    ] = ()


class Selector(WireRecord):
    """Pods of the WeightSync's namespace, by their labels; all parts must hold."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "(has(self.matchLabels) && size(self.matchLabels) > 0)"
                " || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
                "an empty selector would take every pod of the namespace: write matchLabels or matchExpressions",
            )
        )
    )

    match_labels: Annotated[
        dict[str, LabelValue], Field(max_length=32, description="Labels that a pod must carry, with these values.")
    ] = Field(default_factory=dict)
    match_expressions: Annotated[
        tuple[Requirement, ...], Field(max_length=16, description="Expressions that must hold for a pod's labels.")
    ] = ()


class Trainer(WireRecord):
    """The pods that publish weights."""

    selector: Annotated[Selector, Field(description="Trainer pods; each runs an agent with role trainer.")]


class Group(WireRecord):
    """Which pods are one engine."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "(has(self.by) && self.by == 'Label') == (has(self.key) && size(self.key) > 0)",
                "write the key of the label whose value names the engine together with by: Label, and only then",
            )
        )
    )

    by: Annotated[
        Literal["Auto", "Pod", "LeaderWorkerSet", "Label"],
        Field(
            description="Auto goes by the labels of the pods' workload: LeaderWorkerSet, JobSet, RayCluster, "
            "RoleBasedGroup; StatefulSet and PodClique where the annotation weightsync.io/engine-pods says of how "
            "many pods an engine is; else each pod is an engine. Label: pods of one value of the label key."
        ),
    ] = "Auto"
    key: Annotated[
        str,
        Field(max_length=317, pattern=rf"^$|{LABEL_KEY}", description="By Label: the label that names the engine."),
    ] = ""


class Rollout(WireRecord):
    """The pods that serve them."""

    selector: Annotated[Selector, Field(description="Engine pods; each runs an agent with role engine.")]
    group: Annotated[Group, Field(description="Which pods are one engine.")] = Group()
    initial_gate: Annotated[
        Literal["Open", "Closed"],
        Field(
            description="The readiness gate weightsync.io/WeightsCurrent of an engine that serves its base "
            "checkpoint while nothing has been published yet. Closed keeps such pods unready until then."
        ),
    ] = "Open"


class Rdma(WireRecord):
    """How RDMA devices are used. What an agent's own environment sets counts before this."""

    devices: Annotated[
        tuple[DeviceName, ...],
        Field(max_length=64, description="The only devices that are used, such as mlx5_0; empty for all."),
    ] = ()
    gid_index: Annotated[
        int | None,
        Field(ge=0, le=255, description="Index of the GID table; of the same kind of address on all nodes."),
    ] = None
    traffic_class: Annotated[
        int | None, Field(ge=0, le=255, description="RoCE: DSCP times 4, as the fabric's lossless class has it.")
    ] = None
    service_level: Annotated[int | None, Field(ge=0, le=15, description="InfiniBand: service level.")] = None
    mtu: Annotated[
        Literal[512, 1024, 2048, 4096] | None, Field(description="Bytes of a packet, alike on all nodes.")
    ] = None
    queue_pairs: Annotated[int | None, Field(ge=1, le=255, description="Connections to one device of a peer.")] = None


class Relay(WireRecord):
    """Engines pass a version on to engines."""

    fanout: Annotated[
        int,
        Field(
            ge=0,
            le=64,
            description="How many engines an engine passes a new version on to, at most, while it gets it, and how "
            "many of each parallelism the trainer writes to: its egress stays that many times the version, however "
            "many engines there are. 0: the trainer writes to all. To engines in Direct mode, of several pods, and "
            "those that it reaches over another transport than engines one another, it writes in any case.",
        ),
    ] = 2


class Transfer(WireRecord):
    """How bytes move."""

    protocol: Annotated[
        Literal["Auto", "RDMA", "TCP"],
        Field(
            description="What carries the bytes. Auto: for each route RDMA where both ends have a device that they "
            "can use, else TCP; the outcome of a publish says which and why. RDMA: engines without are refused, and "
            "nothing falls back. TCP: no byte takes a device."
        ),
    ] = "Auto"
    rdma: Annotated[Rdma, Field(description="How RDMA devices are used.")] = Rdma()
    relay: Annotated[Relay, Field(description="How engines pass a version on to engines.")] = Relay()
    mode: Annotated[
        Literal["Auto", "Staged", "Direct"],
        Field(
            description="Where weights land. Staged: in a replica in host memory beside the engine, which serves "
            "meanwhile. Direct: in the engine's live parameters, which the engine registered itself; it stands still "
            "while they are written. Auto: Staged where the replica fits into the agent's memory limit, else Direct "
            "where the engine offers it."
        ),
    ] = "Auto"
    bucket_size: Annotated[
        str,
        Field(
            max_length=18,
            pattern=QUANTITY_PATTERN,
            description="Upper bound of the unit in which weights are filled, written and checked, such as 512Mi; "
            "a replica is always cut into at least 16.",
            json_schema_extra=rules(
                (
                    f"!isQuantity(self) || (quantity(self).compareTo(quantity('{SMALLEST_BUCKET}')) >= 0"
                    f" && quantity(self).compareTo(quantity('{LARGEST_BUCKET}')) <= 0)",
                    f"write a bucketSize between {SMALLEST_BUCKET} and {LARGEST_BUCKET}",
                )
            ),
        ),
    ] = "512Mi"


class Strategy(WireRecord):
    """When and how engines switch to a version."""

    type: Annotated[
        Literal["Barrier", "Rolling"],
        Field(
            description="Barrier: all engines that hold the whole version by the deadline switch together. Rolling: "
            "each switches as soon as it holds it, at most maxUnavailable at a time."
        ),
    ] = "Barrier"
    max_unavailable: Annotated[
        int | str,
        Field(
            description="Rolling: how many engines may be away at once, as a count or as a share of all such as 25% "
            "(rounded down, at least one).",
            json_schema_extra=rules(
                (
                    "type(self) == int ? int(self) >= 1 : string(self).matches('^(100|[1-9][0-9]?)%$')",
                    "write maxUnavailable as a count of at least 1, or as a share from 1% to 100%",
                )
            )
            | {"maxLength": 4},
        ),
    ] = "25%"
    deadline_seconds: Annotated[
        int, Field(ge=1, le=3600, description="How long a sync waits for an engine before it goes on without it.")
    ] = 60
    pause_mode: Annotated[
        Literal["Abort", "Retract", "InPlace"],
        Field(
            description="What happens to running requests at the switch. Abort: they end early. Retract: they "
            "continue on the new weights with a fresh cache. InPlace: they continue on their old cache."
        ),
    ] = "Retract"


def _parts(selector: str) -> tuple[str, str]:
    """CEL values of a selector's two parts that can be compared: objects of two fields are of two types."""
    values = "[e.key, e.operator] + (has(e.values) ? e.values : [])"
    labels = f"(has({selector}.matchLabels) ? {selector}.matchLabels : {{}})"
    return labels, f"(has({selector}.matchExpressions) ? {selector}.matchExpressions.map(e, {values}) : [])"


(_OURS, _OUR_EXPRESSIONS), (_THEIRS, _THEIR_EXPRESSIONS) = map(
    _parts, ("self.trainer.selector", "self.rollout.selector")
)


class WeightSyncSpec(WireRecord):
    """Which trainer pods feed which engine pods, and how."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                f"{_OURS} != {_THEIRS} || {_OUR_EXPRESSIONS} != {_THEIR_EXPRESSIONS}",
                "trainer and rollout have the same selector, but a pod is one or the other: change one of them",
            )
        )
    )

    trainer: Annotated[Trainer, Field(description="The pods that publish weights.")]
    rollout: Annotated[Rollout, Field(description="The pods that serve them.")]
    transfer: Annotated[Transfer, Field(description="How bytes move.")] = Transfer()
    strategy: Annotated[Strategy, Field(description="When and how engines switch to a version.")] = Strategy()
    join_policy: Annotated[
        plan.JoinPolicy,
        Field(
            description="How an engine that comes gets its first version. Peer: the newest one at once, read from "
            "another engine that has it, else written by the trainer. NextVersion: with the next version that is "
            "published."
        ),
    ] = "Peer"
    suspend: Annotated[
        bool, Field(description="True holds every publish back: engines go on serving the version they have.")
    ] = False

    @property
    def plan_transfer(self) -> plan.Transfer:
        """The transfer part as plans carry it."""
        transfer = self.transfer
        rdma = plan.Rdma.model_validate(transfer.rdma.model_dump())
        relay = plan.Relay(fanout=transfer.relay.fanout)
        return plan.Transfer(protocol=transfer.protocol, bucket_size=transfer.bucket_size, rdma=rdma, relay=relay)

    @property
    def plan_strategy(self) -> plan.Strategy:
        """The strategy part as plans carry it."""
        s = self.strategy
        return plan.Strategy(
            type=s.type,
            max_unavailable=s.max_unavailable,
            deadline_seconds=s.deadline_seconds,
            pause_mode=s.pause_mode,
        )
