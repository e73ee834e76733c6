"""Cycles are looked for again after a plan, however it ended."""

import gc

import pytest

from weightsync_operator import cycles


def broken() -> None:
    """A plan that fails."""
    with cycles.none_looked_for():
        if gc.isenabled():
            raise AssertionError("cycles are looked for while a plan is made")
        raise ValueError("broken")


def test_none_are_looked_for_while_a_plan_is_made() -> None:
    """Not even where it raises does the process go on without."""
    with pytest.raises(ValueError, match="broken"):
        broken()
    assert gc.isenabled()
