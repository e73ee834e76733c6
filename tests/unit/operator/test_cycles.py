"""Cycles are looked for again after a plan, however it ended."""

import gc

import pytest

from weightsync_operator import cycles


def test_none_are_looked_for_while_a_plan_is_made() -> None:
    """Not even where it raises does the process go on without."""
    with pytest.raises(ValueError, match="broken"), cycles.none_looked_for():
        assert not gc.isenabled()
        raise ValueError("broken")
    assert gc.isenabled()
