"""The table of cases. Each puts a question to an engine and gives the answer as JSON; cases_*.py fill the table.

Order matters: one engine, one case after the other; each leaves it resumed, idle, and with the checkpoint that it
started with. Those in FATAL end or wedge the engine: each needs one of its own.
"""

from collections.abc import Awaitable, Callable

from tests.contract.api import Json
from tests.contract.world import World

Case = Callable[[World], Awaitable[Json]]
CASES: dict[str, Case] = {}
FATAL: dict[str, Case] = {}


def case(name: str, table: dict[str, Case] = CASES) -> Callable[[Case], Case]:
    """Put a case into the table."""

    def add(function: Case) -> Case:
        table[name] = function
        return function

    return add
