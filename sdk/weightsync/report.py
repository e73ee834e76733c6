"""The coordinator's report of the last sync, an annotation of its own pod; the operator copies it. Pure."""

from typing import Annotated

from pydantic import Field

from weightsync.records import WireRecord

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

    version: str
    label: str = ""
    engines: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    pause_seconds_p50: float = 0.0
    pause_seconds_max: float = 0.0
    routes: Annotated[dict[str, int], Field(max_length=8)] = Field(default_factory=dict)


class Report(WireRecord):
    """Value of the annotation weightsync.io/report, as JSON.

    term: the coordinator's; version: the newest decided; counts are of engines in the plan.
    """

    term: int
    version: str = ""
    label: str = ""
    published: int = 0
    current: int = 0
    behind: int = 0
    joining: int = 0
    failed: int = 0
    syncing: bool = False
    last_sync: LastSync | None = None
    worst: Annotated[tuple[Offender, ...], Field(max_length=WORST)] = ()
    error: Annotated[str, Field(max_length=1024)] = ""
    error_reason: Annotated[str, Field(max_length=128)] = ""
