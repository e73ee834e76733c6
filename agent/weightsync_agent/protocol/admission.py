"""Which of a coordinator's messages a source lets in: the term's fence, and what it has heard of before. Pure.

Messages come late, twice and out of order. What was written under a grant must not be written again once the last
receipt has closed it, so a sync's routes are started once, and never after its end: which is told by itself, or by a
later sync of the same coordinator, who has one at a time.
"""

from dataclasses import dataclass, field

from weightsync_agent.protocol import source_events as s
from weightsync_agent.protocol.fence import Fence

KEPT = 64  # syncs that are remembered


@dataclass
class Admission:
    """taken: syncs whose routes were started; over: syncs that have ended, or were refused. rank: for messages."""

    rank: str
    fence: Fence = field(default_factory=Fence)
    taken: dict[str, None] = field(default_factory=dict)
    over: dict[str, None] = field(default_factory=dict)

    def stale(self, event: s.Ordered | s.Ended) -> bool:
        """Of a term that is over."""
        return term(event) < self.fence.term

    def second(self, event: s.Ordered | s.Ended) -> bool:
        """Of another coordinator than the one that holds its term."""
        ours, other = self.fence.coordinator, event.coordinator
        return term(event) == self.fence.term and "" not in (ours, other) and ours != other

    def why(self, event: s.Ordered | s.Ended) -> tuple[str, str]:
        """Reason and message for what is stale or a second coordinator's."""
        holder = self.fence.coordinator or "another coordinator"
        if self.stale(event):
            return "StaleTerm", f"{self.rank}: term {term(event)} is over: {holder} holds term {self.fence.term}"
        return "TermHeld", f"{self.rank}: term {term(event)} belongs to {holder}, not {event.coordinator}"

    def enter(self, event: s.Ordered | s.Ended) -> None:
        """Let it in: nothing of an older term has effect from here on. One that names nobody takes no name away."""
        if term(event) > self.fence.term or event.coordinator:
            self.fence.raise_to(term(event), event.coordinator)
        self.fence.hear(event.order.sync if isinstance(event, s.Ordered) else event.sync)

    def ended(self, sync: str) -> bool:
        """It has ended, or was refused."""
        return sync in self.over or self.fence.over(sync)

    def take(self, sync: str) -> None:
        """Its routes are started."""
        _remember(self.taken, sync)

    def end(self, sync: str) -> None:
        """It has ended, or was refused: it starts no more."""
        _remember(self.over, sync)


def term(event: s.Ordered | s.Ended) -> int:
    """The term that it was sent in."""
    return event.order.term if isinstance(event, s.Ordered) else event.term


def _remember(known: dict[str, None], sync: str) -> None:
    known[sync] = None
    while len(known) > KEPT:
        known.pop(next(iter(known)))
