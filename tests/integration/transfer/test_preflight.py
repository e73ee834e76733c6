"""Preflight's writes between real workers, over TCP."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.transfer.workers import MIB, SMALL, until
from weightsync_cli.checks import writes
from weightsync_cli.checks.writes import Place

pytestmark = pytest.mark.mooncake


@pytest.fixture
def place(memory_folder: Path) -> Place:
    """This machine's loopback."""
    return Place("127.0.0.1", SMALL, memory_folder)


@pytest.fixture
async def listening(place: Place) -> AsyncIterator[str]:
    """The address of a pod that listens."""
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(writes.listen(place, 0, ready.set_result))
    yield f"127.0.0.1:{await ready}"
    serving.cancel()
    await asyncio.wait([serving])


async def test_a_loopback_write_is_compared_and_timed(place: Place) -> None:
    """And leaves nothing in the volume."""
    found = await writes.loopback(place, 3 * MIB + 4096)
    assert (found.status, found.found.startswith(f"{3 * MIB + 4096} bytes over tcp in ")) == ("ok", True), found
    assert found.found.endswith("equal")
    assert list(place.folder.iterdir()) == []


async def test_a_write_to_a_listening_pod_is_compared_and_timed(place: Place, listening: str) -> None:
    """Twice: the listener serves whoever asks; no arena of either side stays."""
    for _ in range(2):
        found = await writes.to_peer(place, listening, 2 * MIB)
        assert (found.status, found.check) == ("ok", f"write to {listening}"), found
    await until(lambda: not list(place.folder.iterdir()))


async def test_settings_that_differ_are_named(place: Place, listening: str) -> None:
    """Before a byte moves, with both values."""
    other = Place(place.host, replace(place.settings, slice_bytes=65536), place.folder)
    found = await writes.to_peer(other, listening, MIB)
    assert found.status == "failed"
    assert "MC_TCP_SLICE_SIZE is 65536 on our side and 1048576 on theirs" in found.found


async def test_a_pod_that_does_not_listen_is_named(place: Place) -> None:
    """With what to look at."""
    found = await writes.to_peer(place, "127.0.0.1:9", MIB)
    assert (found.status, "is a pod listening there" in found.remedy) == ("failed", True), found


async def test_a_size_that_nobody_makes_room_for_is_refused(place: Place, listening: str) -> None:
    """The other side's words come back."""
    found = await writes.to_peer(place, listening, writes.LARGEST + 1)
    assert "the other side says" in found.found
