"""Which stage owns which checkpoint names: all stages' names of a program meet here, once per life of a trainer."""

import asyncio
from dataclasses import dataclass, field

from weightsync.buckets import assign
from weightsync.convert.program import CopyProgram
from weightsync.errors import CoverageError
from weightsync.wire.v1 import NamesRequest


@dataclass
class Meeting:
    """The stages of one program that have come so far."""

    names: dict[int, frozenset[str]] = field(default_factory=dict)
    owned: "asyncio.Future[dict[int, frozenset[str]]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def closed_to(self, stage: int, names: frozenset[str]) -> bool:
        """What was settled here, or told, does not hold for a stage that comes with these names."""
        settled = self.owned.done() and not self.owned.cancelled() and self.owned.exception() is None
        return self.names.get(stage, names) != names or (settled and stage not in self.owned.result())


class Naming:
    """Waits until every stage has told its names, then lets buckets.assign decide."""

    def __init__(self) -> None:
        self._meetings: dict[str, Meeting] = {}

    async def add(
        self, request: NamesRequest, program: CopyProgram, stages: set[int], seconds: float
    ) -> frozenset[str]:
        """The names that the caller's stage owns. Raises CoverageError: for all stages alike, or for a timeout.

        A stage that comes again with other names (its trainer restarted) opens a new meeting; so does one that the
        last meeting did not know (the plan had no route from it then).
        """
        names = frozenset(request.names)
        meeting = self._meetings.get(request.program)
        if meeting is None or meeting.closed_to(request.stage, names):
            meeting = self._meetings[request.program] = Meeting()
        meeting.names[request.stage] = names
        if stages <= set(meeting.names) and not meeting.owned.done():
            try:
                meeting.owned.set_result(assign(program, {stage: meeting.names[stage] for stage in stages}))
            except CoverageError as error:
                del self._meetings[request.program]
                meeting.owned.set_exception(error)
        try:
            owned = await asyncio.wait_for(asyncio.shield(meeting.owned), seconds)
        except TimeoutError:
            lack = sorted(stages - set(meeting.names))
            raise CoverageError(
                f"stages {lack} did not tell their checkpoint names within {seconds:.0f} s: every rank must publish"
            ) from None
        return owned[request.stage]
