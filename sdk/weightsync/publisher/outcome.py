"""What became of a publish, for the trainer's loop. Pure."""

from collections import Counter
from typing import Literal

from weightsync.wire.v1 import EngineOutcome, PublishOutcome

Status = Literal["Current", "Incomplete", "NoTargets", "Failed"]

# An engine that left, or for which a newer publish took this one's place, is no failure: a rollout that scales down
# must not end a training run.
_NOT_CURRENT = ("Behind", "Failed")


class Outcome(PublishOutcome):
    """One outcome for each engine that the publish was for: Current, Behind, Gone, Failed or Superseded.

    reason and message: why the publish as a whole failed, empty otherwise; seconds and nbytes: of the sync.
    """

    @property
    def status(self) -> Status:
        """Failed: the publish itself; Incomplete: some engine is behind or failed; NoTargets: no engine was there."""
        if self.reason and self.reason != "NoTargets":
            return "Failed"
        if self.failures:
            return "Incomplete"
        return "Current" if self.engines else "NoTargets"

    @property
    def failures(self) -> tuple[EngineOutcome, ...]:
        """The engines that are behind or failed."""
        return tuple(engine for engine in self.engines if engine.outcome in _NOT_CURRENT)

    @property
    def transports(self) -> dict[str, int]:
        """``rdma``, ``tcp`` -> how many routes' bytes went over it."""
        return dict(Counter(route.transport for engine in self.engines for route in engine.routes))

    def describe(self) -> str:
        """A sentence that names what failed, each engine with its reason."""
        if self.status == "Failed":
            return f"{self.reason}: {self.message}"
        if not self.failures:
            return f"{len(self.engines)} engines, none behind" if self.engines else "no engine to serve it"
        named = "; ".join(
            f"{engine.engine}: {engine.outcome}, {engine.reason or 'no reason'}: {engine.message}".rstrip(": ")
            for engine in self.failures
        )
        return f"{len(self.failures)} of {len(self.engines)} engines do not serve it: {named}"
