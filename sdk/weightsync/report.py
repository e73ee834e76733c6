"""The coordinator's report of the last sync, an annotation of its own pod; the operator copies it. Pure."""

from typing import Annotated

from pydantic import Field

from weightsync.bounds import LARGEST
from weightsync.records import WireRecord

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Word = Annotated[str, Field(max_length=128)]  # the status has these, too: whoever may write a pod may report
Label = Annotated[str, Field(max_length=256)]

WORST = 20  # at most so many offenders are named: no object grows with the cluster


class Offender(WireRecord):
    """An engine that is not current, and why."""

    engine: str
    reason: str
    message: Annotated[str, Field(max_length=512)]


class LastSync(WireRecord):
    """Figures of the last finished sync. Seconds, bytes; throughput is payload bytes written over seconds.

    routes: transport -> how many routes to engines that are current went over it.
    """

    version: Word
    label: Label = ""
    engines: Count = 0
    nbytes: Count = 0
    seconds: Seconds = 0.0
    pause_seconds_p50: Seconds = 0.0
    pause_seconds_max: Seconds = 0.0
    routes: Annotated[dict[str, Count], Field(max_length=8)] = Field(default_factory=dict)


class Report(WireRecord):
    """Value of the annotation weightsync.io/report, as JSON.

    term: the coordinator's; version: the newest decided; counts are of engines in the plan.
    """

    term: int
    version: Word = ""
    label: Label = ""
    published: Count = 0
    current: Count = 0
    behind: Count = 0
    joining: Count = 0
    failed: Count = 0
    syncing: bool = False
    last_sync: LastSync | None = None
    worst: Annotated[tuple[Offender, ...], Field(max_length=WORST)] = ()
    error: Annotated[str, Field(max_length=1024)] = ""
    error_reason: Word = ""
