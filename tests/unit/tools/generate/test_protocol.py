"""The page of the machines says all that their tables say."""

import re
from collections.abc import Sequence
from enum import Enum
from typing import Any

import pytest

from tools.generate import guards, protocol
from weightsync_agent.protocol.table import Machine, Row

MACHINES = protocol.machines()
PAGE = protocol.page()[protocol.PATH]


def section(machine: type[Machine[Any]]) -> str:
    """The machine's part of the page."""
    found = re.search(rf"^## {machine.__name__}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def arrows(machine: type[Machine[Any]]) -> dict[tuple[str, str], str]:
    """What stands at the arrows of the drawing, by the states that they join."""
    drawn = re.findall(r"^    (\w+) --> (\w+): (.*)$", section(machine), re.MULTILINE)
    return {(state, to): label for state, to, label in drawn}


def test_the_known_machines_are_all_there() -> None:
    """A machine that is new comes by itself; one that vanishes is missed here."""
    assert {machine.__name__ for machine in MACHINES} >= {"Coordinator", "Source", "Route", "Target", "EngineLeader"}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_every_row_is_drawn_or_listed(machine: type[Machine[Any]]) -> None:
    """Each move is an arrow with its event and nothing else is; no row stays unsaid; no state is left out."""
    text, expected = section(machine), dict[tuple[str, str], list[str]]()

    def moves(state: Enum, to: str, event: str) -> None:
        known = expected.setdefault((state.name, to), [])
        if event not in known:
            known.append(event)

    for (state, event), rows in machine.table.items():
        for row in rows:
            targets: Sequence[Enum] = row.may if row.to is None else (row.to,)
            if protocol.anywhere(machine, row):
                targets = ()
                if event.__name__ not in protocol.everywhere(machine):
                    moves(state, protocol.HUB, event.__name__)
            for to in targets:
                if to is not state:
                    moves(state, to.name, event.__name__)
            assert row.name, f"{machine.__name__}: a row of {state.name} and {event.__name__} has no name"
            assert any(
                (f"`{state.name}`" in line or line.startswith("| any |"))
                and f"`{event.__name__}`" in line
                and row.name.replace("|", "\\|") in line
                for line in text.splitlines()
            )
    assert arrows(machine) == {joined: protocol.label(events) for joined, events in expected.items()}
    hub = re.findall(rf"^    {protocol.HUB} --> (\w+)$", text, re.MULTILINE)
    assert hub in ([], [state.name for state in protocol.states(machine)])
    assert bool(hub) == any(to == protocol.HUB for _, to in expected)
    for common in protocol.everywhere(machine):
        assert f"`{common}`" in text.split("From every state, to whatever is next: ")[1].splitlines()[0]
    for each in protocol.states(machine):
        assert f"| `{each.name}` | {each.value} |" in text


def test_a_long_label_is_cut_and_counted() -> None:
    """The table below says the rest."""
    assert protocol.label(["A", "B", "C", "D"]) == "A, B, C, D"
    assert protocol.label(["A", "B", "C", "D", "E"]) == "A, B, C and 2 more"


def test_guards_are_told_by_their_source() -> None:
    """A lambda by its body, also beside others in its line; a function by its name."""

    def ready(m: Any, e: Any) -> bool:
        return bool(m and e)

    rows = Row(None, guard=lambda m, e: m.quiet()), Row(None, guard=lambda m, e: m.done(e.sync) and not m.late)
    assert [guards.text(row.guard) for row in rows] == ["m.quiet()", "m.done(e.sync) and (not m.late)"]
    assert guards.text(ready) == "ready()"
    assert guards.text(None) == ""
