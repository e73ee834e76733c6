"""Which requests are too old, and when a region is quiet. Pure.

Measured: a write goes on landing after its region was unregistered, after its writer timed out and after its
writer's process was killed. So a region is quiet only when every writer that was granted it has said that its
writes are terminal, or the receiving worker has been killed. Nothing else is trusted.
"""

from dataclasses import dataclass, field

from weightsync.errors import Refused


@dataclass
class Fence:
    """The highest term seen, and who holds it: one coordinator per term."""

    term: int = 0
    coordinator: str = ""

    def check(self, term: int, coordinator: str = "") -> None:
        """Raises Refused(StaleTerm) for an older term, Refused(TermHeld) for a second coordinator in one term."""
        if term < self.term:
            raise Refused(
                f"term {term} is over: {self.coordinator or 'another coordinator'} holds term {self.term}",
                reason="StaleTerm",
            )
        if term == self.term and coordinator and self.coordinator and coordinator != self.coordinator:
            raise Refused(f"term {term} belongs to {self.coordinator}, not {coordinator}", reason="TermHeld")

    def raise_to(self, term: int, coordinator: str) -> None:
        """Take over a checked term."""
        self.check(term, coordinator)
        self.term, self.coordinator = term, coordinator


@dataclass
class OpenGrant:
    """One permission to fill one arena: who may write, and who may still."""

    grant: str
    term: int
    coordinator: str
    sync: str
    lineage: str
    number: int
    program: str
    writers: frozenset[str] = frozenset()
    open: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def quiet(self) -> bool:
        """No granted writer can land another byte."""
        return not self.open
