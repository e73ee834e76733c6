"""Which states, rows and guards of which tables were reached: counted by wrapping Machine.handle, not the machines.

A row is named by machine, state, event and its place; its guard has two sides: it held, or it did not.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from weightsync_agent.protocol.table import Machine, Row

if TYPE_CHECKING:
    from tools.simulate.world import World

Key = tuple[str, str, str, int]


class Coverage:
    """Counts of this process; can be added up."""

    def __init__(self) -> None:
        self.rows: Counter[Key] = Counter()
        self.unheld: Counter[Key] = Counter()
        self.states: Counter[tuple[str, str]] = Counter()
        self.faults: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.schedules = 0
        self.syncs = 0
        self.joins = 0
        self.renewals = 0

    def schedule(self, world: World) -> None:
        """One has ended well."""
        self.schedules += 1
        self.syncs += world.ledger.decided_syncs
        self.joins += world.ledger.joins
        self.renewals += world.ledger.renewals
        self.faults.update(world.struck)
        self.outcomes.update(world.watch.outcomes)

    def clear(self) -> None:
        """From the beginning."""
        for name in ("rows", "unheld", "states", "faults", "outcomes"):
            getattr(self, name).clear()
        self.schedules = self.syncs = self.joins = self.renewals = 0

    def add(self, other: Coverage) -> None:
        """Sum."""
        for name in ("rows", "unheld", "states", "faults", "outcomes"):
            getattr(self, name).update(getattr(other, name))
        self.schedules += other.schedules
        self.syncs += other.syncs
        self.joins += other.joins
        self.renewals += other.renewals


COVERAGE = Coverage()


PROTOCOL = Machine.__module__.rpartition(".")[0]


def machines() -> list[type[Machine[Any]]]:
    """The protocol's, with a table; tests make machines of their own."""
    first = Machine.__subclasses__()
    found = [
        cls
        for cls in (*first, *(sub for cls in first for sub in cls.__subclasses__()))
        if cls.__module__.startswith(f"{PROTOCOL}.") and hasattr(cls, "table")
    ]
    return sorted(found, key=lambda cls: cls.__name__)


def rows(cls: type[Machine[Any]]) -> dict[Key, Row]:
    """Every row of a machine's table."""
    return {
        (cls.__name__, state.name, event.__name__, place): row
        for (state, event), each in cls.table.items()
        for place, row in enumerate(each)
    }


def states(cls: type[Machine[Any]]) -> set[str]:
    """All states that its table speaks of."""
    found = set()
    for (state, _), each in cls.table.items():
        found.add(state.name)
        for row in each:
            found |= {s.name for s in (row.to, *row.may) if s is not None}
    return found


def install() -> None:
    """Count from here on."""
    if getattr(Machine, "counted", False):
        return
    original = Machine.handle
    taken, unheld, reached = COVERAGE.rows, COVERAGE.unheld, COVERAGE.states

    def handle(self: Machine[Any], event: object, now: float) -> list[object]:
        state, kind, name = self.state, type(event), type(self).__name__
        reached[name, state.name] += 1  # a machine's first state is one that no row leads to
        each = self.table.get((state, kind), ())
        if len(each) == 1 and each[0].guard is None:
            taken[name, state.name, kind.__name__, 0] += 1
        else:
            for place, row in enumerate(each):
                if row.guard is None or row.guard(self, event):
                    taken[name, state.name, kind.__name__, place] += 1
                    break
                unheld[name, state.name, kind.__name__, place] += 1
        actions = original(self, event, now)
        reached[name, self.state.name] += 1
        return actions

    Machine.handle = handle  # type: ignore[method-assign]
    Machine.counted = True  # type: ignore[attr-defined]


def summary(coverage: Coverage) -> list[tuple[str, int, int, int, int, int, int]]:
    """By machine: states reached and all, rows taken and all, guard sides seen and all."""
    found = []
    for cls in machines():
        name = cls.__name__
        all_states, all_rows = states(cls), rows(cls)
        guards = [key for key, row in all_rows.items() if row.guard is not None]
        sides = sum(key in coverage.rows for key in guards) + sum(key in coverage.unheld for key in guards)
        found.append((
            name, sum((name, s) in coverage.states for s in all_states), len(all_states),
            sum(key in coverage.rows for key in all_rows), len(all_rows), sides, 2 * len(guards),
        ))  # fmt: skip
    return found


# Rows that stand in the tables and that no driver reaches, by machine and event ("*" any state), with the reason.
OVER = "a route that is over is fed nothing; a driver that feeds it must not fail"
SECOND = "the driver asks the machine before; a driver that does not must not break it"
OUT_OF_REACH: dict[tuple[str, str, str, int], str] = {
    **{("Target", "SEALED", event, 1): "the driver seals a quiet arena only" for event in ("Ask", "Lend")},
    **{("Source", "*", event, 1): "the operator gives a term to one coordinator" for event in ("Ordered", "Ended")},
    **{("EngineLeader", state, "CommitAsked", 0): SECOND for state in ("FRESH", "TORN", "REAPPLYING", "CURRENT")},
    ("EngineLeader", "CURRENT", "CommitAsked", 1): SECOND,
    **{
        ("Route", state, event, 0): OVER
        for state in ("VERIFIED", "FAILED")
        for event in ("Filled", "AllFilled", "Cancel")
    },
    ("Route", "FAILED", "Written", 0): OVER,
    **{("Route", "VERIFIED", event, 0): OVER for event in ("Checked", "ReceiptBroke", "WriteBroke")},
    **{
        ("EngineLeader", state, "LifeChanged", 0): "expects() takes any name in that state"
        for state in ("COMMITTING", "OPENING", "REFUSED")
    },
    ("EngineLeader", "ABSENT", "LookFailed", 0): "the driver ends a look when the engine falls silent",
    ("Replica", "SPENT", "Broken", 0): "what has its outcome is not broken any more",
    **{
        ("Replica", state, "Settled", 0): "the driver tells a version as decided before it tells the outcome"
        for state in ("FILLING", "FILLED")
    },
    **{("Route", state, "Written", 0): "nothing is in flight then" for state in ("CLOSING", "VERIFIED")},
    ("Route", "VERIFIED", "Unsent", 0): "nothing is in flight then",
    ("Joiner", "APPLYING", "Needs", 0): "what is taken over is kept, which tells that nothing is needed, at once",
    ("EngineMember", "HELD", "HoldAsked", 0): "the driver lets go of an older hold before it asks for a new one",
    ("Route", "CLOSING", "AllFilled", 0): "told once for each program of an order",
    ("Route", "CLOSING", "Filled", 0): "a shard that is complete is told no more",
    ("Route", "CLOSING", "Filled", 1): "a shard that is complete is told no more",
}


def out_of_reach(key: Key) -> str:
    """Why no driver reaches that row; "" where one may."""
    return OUT_OF_REACH.get(key) or OUT_OF_REACH.get((key[0], "*", *key[2:]), "")


def explained() -> list[str]:
    """Rows that are out of reach, as missed() names them."""
    return [
        f"{key[0]}: {key[1]} + {key[2]} [{key[3]}] {row.name}"
        for cls in machines()
        for key, row in rows(cls).items()
        if out_of_reach(key)
    ]


def missed(coverage: Coverage) -> list[str]:
    """Rows that were never taken, as sentences."""
    return [
        f"{key[0]}: {key[1]} + {key[2]} [{key[3]}] {row.name}"
        for cls in machines()
        for key, row in rows(cls).items()
        if key not in coverage.rows
    ]
