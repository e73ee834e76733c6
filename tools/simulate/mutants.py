"""Mechanical bugs: each row of each table removed, each guard made to hold always."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tools.simulate.bugs import Patches
from tools.simulate.coverage import Key, machines, rows
from weightsync_agent.protocol.table import Machine


@dataclass(frozen=True)
class Mutant:
    """key: the row; guard: its guard is removed, not the row."""

    key: Key
    guard: bool
    row: str

    @property
    def name(self) -> str:
        """For people."""
        machine, state, event, place = self.key
        return f"{machine}: {state} + {event} [{place}] {self.row}: {'guard' if self.guard else 'row'} removed"

    def install(self, patches: Patches) -> None:
        """From here on the table lacks it."""
        cls = next(cls for cls in machines() if cls.__name__ == self.key[0])
        patches.set(cls, "table", changed(cls, self))


def changed(cls: type[Machine[Any]], mutant: Mutant) -> dict[Any, Any]:
    """The machine's table with the mutation."""
    table = dict(cls.table)
    for (state, event), each in cls.table.items():
        if (state.name, event.__name__) != mutant.key[1:3]:
            continue
        place = mutant.key[3]
        kept = list(each)
        if mutant.guard:
            kept[place] = replace(kept[place], guard=None)
        else:
            del kept[place]
        table[state, event] = tuple(kept)
    return table


def every() -> list[Mutant]:
    """All of them."""
    found = []
    for cls in machines():
        for key, row in rows(cls).items():
            found.append(Mutant(key, guard=False, row=row.name))
            if row.guard is not None:
                found.append(Mutant(key, guard=True, row=row.name))
    return found
