"""`docs/protocol.md`: every machine of the agent's protocol, drawn and listed from its table."""

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tools.generate import guards
from weightsync_agent import protocol
from weightsync_agent.protocol.table import Machine, Row

PATH = "docs/protocol.md"
HEAD = """\
<!-- Generated from agent/weightsync_agent/protocol by `python -m tools.generate`: change the tables, not this. -->

# The protocol's machines

Every decision of a sync is a row of one of these tables: a state, an event, a condition, what follows. An event that
no row takes is refused, and changes nothing. The machines know no clock and no network; drivers feed them with what
happened, and carry out what they ask for. [How it works](architecture.md) tells the same as a story, and
[what is promised](guarantees.md) names the promises that the rows keep.

In the drawings an arrow carries the events that may lead along it. A row whose effect decides between several states
is drawn to each of them, and where those are all, through one point. Rows that stay in their state are only listed.
"""
MOST_WORDS = 4  # at one arrow
HUB = "next"  # the point in a drawing where what else waits decides
# From the trainer's side to the engine's; a machine that is not named here comes last.
ORDER = ("Coordinator", "Source", "Lane", "Replica", "Route", "Target", "EngineLeader", "EngineMember", "Joiner")


@dataclass(frozen=True)
class Line:
    """One row of a table, for all states that have it alike."""

    states: tuple[str, ...]
    event: str
    when: str
    to: tuple[str, ...]
    name: str


def page() -> dict[str, str]:
    """The page, by its path."""
    return {PATH: HEAD + "".join(_section(machine) for machine in machines())}


def machines() -> list[type[Machine[Any]]]:
    """Every machine that has a table, in ORDER."""
    for module in pkgutil.iter_modules(protocol.__path__):
        importlib.import_module(f"{protocol.__name__}.{module.name}")
    first = Machine.__subclasses__()
    kinds = [*first, *(kind for machine in first for kind in machine.__subclasses__())]
    found = [machine for machine in kinds if machine.__module__.startswith(protocol.__name__)]
    places = {name: place for place, name in enumerate(ORDER)}
    return sorted(found, key=lambda machine: (places.get(machine.__name__, len(ORDER)), machine.__name__))


def states(machine: type[Machine[Any]]) -> list[Enum]:
    """The machine's states, in the order of their definition."""
    kind: type[Enum] = type(next(iter(machine.table))[0])
    return list(kind)


def moves(state: Enum, row: Row) -> tuple[str, ...]:
    """The other states that the row may lead to from ``state``."""
    return tuple(each.name for each in _targets(row) if each is not state)


def lines(machine: type[Machine[Any]], *, moving: bool) -> list[Line]:
    """Rows that may leave their state, or those that stay; equal rows of several states are one line."""
    found: dict[tuple[str, str, tuple[str, ...], str], list[str]] = {}
    for (state, event), rows in machine.table.items():
        for row in rows:
            if bool(moves(state, row)) is moving:
                to = tuple(each.name for each in _targets(row)) if moving else ()
                key = (event.__name__, guards.text(row.guard), to, row.name)
                found.setdefault(key, []).append(state.name)
    return [Line(tuple(where), event, when, to, name) for (event, when, to, name), where in found.items()]


def _targets(row: Row) -> Sequence[Enum]:
    return row.may if row.to is None else (row.to,)


def anywhere(machine: type[Machine[Any]], row: Row) -> bool:
    """Every state may follow: the next one depends on what else waits."""
    return len(states(machine)) > 2 and set(_targets(row)) == set(states(machine))


def everywhere(machine: type[Machine[Any]]) -> list[str]:
    """Events that lead anywhere from every state."""
    where: dict[str, set[Enum]] = {}
    for (state, event), rows in machine.table.items():
        if any(anywhere(machine, row) for row in rows):
            where.setdefault(event.__name__, set()).add(state)
    return [event for event, found in where.items() if found == set(states(machine))]


def _section(machine: type[Machine[Any]]) -> str:
    module = importlib.import_module(machine.__module__)
    rules = (module.__doc__ or "").strip().replace("``", "`")
    count = len(states(machine))
    moving = [
        (_words(each.states, count), f"`{each.event}`", _code(each.when), _words(each.to, count), each.name)
        for each in lines(machine, moving=True)
    ]
    parts = [
        f"\n## {machine.__name__}\n\n{rules}\n",
        _table(("state", "what it is"), [(f"`{each.name}`", str(each.value)) for each in states(machine)]),
        _drawing(machine),
        _table(("in", "event", "when", "leads to", "what happens"), moving),
    ]
    common = everywhere(machine)
    if common:
        parts.insert(3, f"From every state, to whatever is next: {_words(common)}.\n")
    stays = [
        (_words(each.states, count), f"`{each.event}`", _code(each.when), each.name)
        for each in lines(machine, moving=False)
    ]
    if stays:
        parts += ["Rows that stay in their state:\n", _table(("in", "event", "when", "what happens"), stays)]
    return "\n".join(parts)


def _drawing(machine: type[Machine[Any]]) -> str:
    arrows: dict[tuple[str, str], dict[str, None]] = {}
    common, known = everywhere(machine), [each.name for each in states(machine)]
    for (state, event), rows in machine.table.items():
        for row in rows:
            if not anywhere(machine, row):
                for to in moves(state, row):
                    arrows.setdefault((state.name, to), {})[event.__name__] = None
            elif event.__name__ not in common:
                arrows.setdefault((state.name, HUB), {})[event.__name__] = None
    order = {name: place for place, name in enumerate([*known, HUB])}
    drawn = ["```mermaid", "stateDiagram-v2", f"    [*] --> {known[0]}"]
    if any(to == HUB for _, to in arrows):
        drawn += [f"    state {HUB} <<choice>>", *(f"    {HUB} --> {name}" for name in known)]
    for (state, to), events in sorted(arrows.items(), key=lambda arrow: (order[arrow[0][0]], order[arrow[0][1]])):
        drawn.append(f"    {state} --> {to}: {label(list(events))}")
    return "\n".join([*drawn, "```\n"])


def label(events: Sequence[str]) -> str:
    """What stands at an arrow: few words, for the table below says all."""
    if len(events) <= MOST_WORDS:
        return ", ".join(events)
    return f"{', '.join(events[: MOST_WORDS - 1])} and {len(events) - MOST_WORDS + 1} more"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _words(words: Sequence[str], every: int = 0) -> str:
    """The words; "any" where they are as many as there are states."""
    return "any" if every > 2 and len(words) == every else ", ".join(f"`{word}`" for word in words)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
