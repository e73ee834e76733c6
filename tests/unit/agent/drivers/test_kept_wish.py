"""The transfer mode is known with the API server away, to whoever has read it once."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weightsync.errors import PeerError
from weightsync_agent.drivers.kept_wish import ASK_SECONDS, KeptWish
from weightsync_agent.drivers.landing import Wish

Run = Callable[..., Any]


async def direct() -> Wish:
    return "Direct"


async def refused() -> Wish:
    raise PeerError("the API server answered 429")


async def silent() -> Wish:
    await asyncio.sleep(10 * ASK_SECONDS)
    return "Staged"


def test_what_the_resource_says_now_counts(in_virtual_time: Run, tmp_path: Path) -> None:
    """However long who never read it has to wait."""
    assert in_virtual_time(KeptWish(tmp_path, direct)()) == "Direct"
    assert in_virtual_time(KeptWish(tmp_path / "another", silent)()) == "Staged"


@pytest.mark.parametrize("ask", [refused, silent])
def test_another_life_of_the_agent_takes_what_was_said_last(in_virtual_time: Run, tmp_path: Path, ask: Any) -> None:
    """It does not wait for an API server that is away: its engine may have its version in the arenas here."""

    async def main() -> tuple[Wish, float]:
        began = asyncio.get_running_loop().time()
        return await KeptWish(tmp_path, ask)(), asyncio.get_running_loop().time() - began

    in_virtual_time(KeptWish(tmp_path, direct)())
    wish, seconds = in_virtual_time(main())
    assert wish == "Direct"
    assert seconds <= ASK_SECONDS


def test_nothing_is_kept_of_what_was_not_read(in_virtual_time: Run, tmp_path: Path) -> None:
    """An answer that failed is taken as Auto once, and asked for anew."""
    assert in_virtual_time(KeptWish(tmp_path, refused)()) == "Auto"
    assert in_virtual_time(KeptWish(tmp_path, silent)()) == "Staged"
