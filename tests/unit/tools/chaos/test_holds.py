"""Both ends of a failpoint: the harness that arms it, and the agent that comes to it."""

import asyncio
import os
from pathlib import Path

import pytest

from tools.chaos.holds import Hold
from tools.world.processes import WorldError
from weightsync_agent import failpoints


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(failpoints, "_FOLDER", str(tmp_path))
    return tmp_path


async def test_a_hold_says_who_came_and_lets_him_go_on(folder: Path) -> None:
    """The time of the hold is what lies between reaching and releasing."""
    hold = Hold(folder, "target-applying")
    there = asyncio.create_task(failpoints.reach("target", "applying"))
    assert await asyncio.to_thread(hold.wait, 5) == os.getpid()
    assert not there.done()
    hold.release()
    await asyncio.wait_for(there, 5)
    assert 0 < hold.reached_at <= hold.released_at


async def test_a_hold_that_was_released_holds_nobody_who_comes_later(folder: Path) -> None:
    """Such as an agent that was struck before it came there, and started again."""
    Hold(folder, "target-applying").release()
    await asyncio.wait_for(failpoints.reach("target", "applying"), 1)


def test_a_hold_that_nobody_reaches_is_an_error(folder: Path) -> None:
    """It names the place."""
    with pytest.raises(WorldError, match="target-applying"):
        Hold(folder, "target-applying").wait(0.05)


async def test_arming_again_forgets_the_case_before(folder: Path) -> None:
    """Files of a hold whose process was killed while it was held do not count for the next case."""
    first = Hold(folder, "source-writing")
    held = asyncio.create_task(failpoints.reach("source", "writing"))
    await asyncio.to_thread(first.wait, 5)
    held.cancel()
    assert not Hold(folder, "source-writing").reached
