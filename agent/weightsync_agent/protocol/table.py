"""The engine under every machine: a table of rows, state by event. What is not in the table raises. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from weightsync.errors import ProtocolError

S = TypeVar("S", bound=Enum)

Guard = Callable[[Any, Any], bool]
Effect = Callable[[Any, Any, float], "Sequence[object] | None"]


@dataclass(frozen=True)
class Row:
    """One transition. ``to`` None: the effect decides the next state by ``self.become`` (it is drawn as its ``may``).

    guard: (machine, event) -> bool, without side effects; the first row whose guard holds is taken.
    do: (machine, event, now) -> actions.
    """

    to: Enum | None
    do: Effect | None = None
    guard: Guard | None = None
    name: str = ""
    may: tuple[Enum, ...] = ()


class Machine(Generic[S]):
    """A machine with one table, shared by all its instances."""

    table: ClassVar[Mapping[tuple[Any, type], tuple[Row, ...]]]

    def __init__(self, state: S) -> None:
        self.state = state

    def handle(self, event: object, now: float) -> list[object]:
        """Take one event. Raises ProtocolError, with nothing changed, where no row fits."""
        rows = self.table.get((self.state, type(event)), ())
        for row in rows:
            if row.guard is None or row.guard(self, event):
                before = self.state
                actions = list(row.do(self, event, now) or ()) if row.do else []
                if row.to is not None:
                    self.state = row.to  # type: ignore[assignment]
                elif self.state is not before and self.state not in row.may:
                    raise ProtocolError(f"{type(self).__name__}: row {row.name!r} led to {self.state}")
                return actions
        detail = "no guard holds" if rows else "not in the table"
        raise ProtocolError(
            f"{type(self).__name__} in state {self.state.name} cannot take {type(event).__name__} ({detail}): {event}"
        )

    def takes(self, event: object) -> bool:
        """Whether some row fits; decides nothing and changes nothing."""
        rows = self.table.get((self.state, type(event)), ())
        return any(row.guard is None or row.guard(self, event) for row in rows)
