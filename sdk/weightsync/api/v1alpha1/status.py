"""The status of a WeightSync: what the operator writes, and agents read the head of. Pure.

No object grows with the cluster: counts, and at most WORST engines by name. Whole numbers only, as the API's
conventions ask.
"""

from typing import Annotated, Literal

from pydantic import Field

from weightsync.records import WireRecord
from weightsync.report import WORST, Label, Word

MAX_SLICES = 256
MAX_MESSAGE = 2048

Count = Annotated[int, Field(ge=0)]


class Head(WireRecord):
    """The plan in force: its fence, its content by name, and who runs it.

    term: rises only when the coordinator changes; generation: rises with the plan's content; coordinator: uid of a
    trainer pod; slices: names of WeightSyncSlices, which exist before a head names them.
    """

    term: Annotated[
        Count, Field(description="Fences coordinators: rises only with another one. Milliseconds since 1970.")
    ]
    generation: Annotated[Count, Field(description="Rises with every change of the plan; fences nothing.")]
    coordinator: Annotated[str, Field(max_length=128, description="Uid of the trainer pod whose agent coordinates.")]
    slices: Annotated[
        tuple[Annotated[str, Field(max_length=253)], ...],
        Field(max_length=MAX_SLICES, description="Names of the WeightSyncSlices that hold sources and engines."),
    ] = ()


class Counts(WireRecord):
    """Engines by state. matched is the sum of the others as soon as the coordinator has reported."""

    matched: Annotated[Count, Field(description="Engines that the rollout selector matches.")] = 0
    current: Annotated[Count, Field(description="Engines that serve the newest version.")] = 0
    behind: Annotated[Count, Field(description="Engines that serve an older version and are being repaired.")] = 0
    joining: Annotated[Count, Field(description="Engines that start or receive their first version.")] = 0
    failed: Annotated[Count, Field(description="Engines that are refused or could not be brought to a version.")] = 0


class LastSync(WireRecord):
    """Figures of the last finished sync, as the coordinator reported them."""

    version: Word = ""
    label: Label = ""
    engines: Count = 0
    bytes: Annotated[Count, Field(description="Payload bytes written to engines.")] = 0
    duration_milliseconds: Count = 0
    pause_p50_milliseconds: Annotated[Count, Field(description="Median time for which engines were paused.")] = 0
    pause_max_milliseconds: Annotated[Count, Field(description="Longest time for which an engine was paused.")] = 0
    bytes_per_second: Count = 0
    rdma_routes: Annotated[Count, Field(description="Routes to current engines whose bytes went over RDMA.")] = 0
    tcp_routes: Annotated[Count, Field(description="Routes to current engines whose bytes went over TCP.")] = 0


class Offender(WireRecord):
    """An engine that is not current, and why."""

    engine: Annotated[str, Field(max_length=253)]
    reason: Word
    message: Annotated[str, Field(max_length=512)] = ""


class Condition(WireRecord):
    """One condition, in the form of the API's conventions."""

    type: Annotated[str, Field(max_length=128)]
    status: Literal["True", "False", "Unknown"]
    observed_generation: Count
    last_transition_time: Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z][A-Za-z0-9]*$")]
    message: Annotated[str, Field(max_length=MAX_MESSAGE)]


class WeightSyncStatus(WireRecord):
    """What the operator sees and has decided."""

    observed_generation: Annotated[Count, Field(description="The spec's generation that this is about.")] = 0
    head: Annotated[Head | None, Field(description="The plan in force.")] = None
    version: Annotated[Word, Field(description="The newest version that was decided.")] = ""
    label: Annotated[Label, Field(description="The trainer's own label of that version.")] = ""
    counts: Annotated[Counts | None, Field(description="Engines by state.")] = None
    last_sync: Annotated[LastSync | None, Field(description="Figures of the last finished sync.")] = None
    worst: Annotated[
        tuple[Offender, ...],
        Field(
            max_length=WORST,
            description="Engines that are not current, the worst first.",
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16,
            description="Ready, SourcesReady, PlanReady, Progressing, Degraded, RDMAReady.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type."""
        return next((c for c in self.conditions if c.type == kind), None)
