"""How a run in several processes (`pytest -n 2`) shares out the tests: what stays together, and what comes first.

A file is never split, since its tests share what is dear to make. Units of several files stand in `FIRST`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

# The units that take longest, longest first, so that none is left over when the other processes have nothing to do.
# What uses the machine's one node must not meet and is one unit.
FIRST: tuple[tuple[str, ...], ...] = (
    ("tests/e2e/", "tests/cluster/test_node_lifecycle.py"),
    ("tests/simulation/test_schedules.py",),
    ("tests/layouts/",),  # its files ask one process, which imports SGLang for a long time
    ("tests/controls/",),
    ("tests/integration/operator/test_quiet.py",),
    ("tests/simulation/test_bugs.py",),
    ("tests/contract/",),
    ("tests/integration/chaos/",),
    ("tests/integration/observability/",),
)
NODE = FIRST[0]


def unit(nodeid: str) -> str:
    """The unit that a test belongs to: its file, or the first place of the unit of `FIRST` that holds it."""
    path = nodeid.partition("::")[0]
    return next((places[0] for places in FIRST if path.startswith(places)), path)


def ordered(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The same tests, those of `FIRST` first."""
    places = [paths[0] for paths in FIRST]
    return sorted(items, key=lambda item: _place(places, unit(item.nodeid)))


def _place(places: list[str], name: str) -> int:
    return places.index(name) if name in places else len(places)


def scattered(items: Sequence[pytest.Item]) -> list[str]:
    """Tests that use the node and are not in its unit: beside another one they would end each other's node."""
    marked = (item.nodeid for item in items if item.get_closest_marker("node"))
    return [nodeid for nodeid in marked if unit(nodeid) != NODE[0]]


def processes() -> int:
    """How many `-n auto` means: one more than this process may use cores, up to eight, since tests often wait."""
    return min(8, len(os.sched_getaffinity(0)) + 1)


def scheduler(config: pytest.Config, log: Any) -> Any:
    """What hands units to processes, in the order of the tests."""
    # Imported where the plugin is in use: without it the tests run in one process.
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):  # type: ignore[misc] # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    config.option.loadscopereorder = False  # by the number of tests, that is: a file of one test may take minutes
    return Units(config, log)
