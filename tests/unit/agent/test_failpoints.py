"""Places where a trial holds an agent: nothing where they are not armed, once where they are."""

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest

from weightsync_agent import failpoints


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(failpoints, "_FOLDER", str(tmp_path))
    return tmp_path


async def test_without_the_variable_nothing_is_held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not even a file is looked for."""
    monkeypatch.setattr(failpoints, "_FOLDER", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "target-writing").touch()
    await asyncio.wait_for(failpoints.reach("target", "writing"), 1)
    assert (tmp_path / "target-writing").exists()


async def test_a_place_that_is_not_armed_holds_nobody(folder: Path) -> None:
    """Another place of the same agent may be armed."""
    (folder / "target-verified").touch()
    await asyncio.wait_for(failpoints.reach("target", "writing"), 1)


async def test_an_armed_place_holds_the_first_who_comes_until_it_is_released(folder: Path) -> None:
    """It says who is there; a second one, as after a restart, goes on at once."""
    (folder / "source-writing").touch()
    held = asyncio.create_task(failpoints.reach("source", "writing"))
    reached = folder / "source-writing.reached"
    async with asyncio.timeout(5):
        while not reached.exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
    assert json.loads(reached.read_text()) == {"pid": os.getpid(), "role": "source", "phase": "writing"}
    await asyncio.wait_for(failpoints.reach("source", "writing"), 1)
    assert not held.done()
    (folder / "source-writing.held").unlink()
    await asyncio.wait_for(held, 5)


def test_a_late_write_is_submitted_once_from_another_thread(folder: Path) -> None:
    """The one after it is on time."""
    (folder / "worker-late-write").write_text("0.05")
    came: list[int] = []
    late = threading.Event()

    def submit() -> None:
        came.append(threading.get_ident())
        late.set()

    failpoints.later(submit)
    assert not came
    assert late.wait(5)
    failpoints.later(submit)
    assert came[0] != threading.get_ident()
    assert came[1] == threading.get_ident()


def test_a_bucket_is_corrupted_once(folder: Path) -> None:
    """Its first byte, and no other bucket's."""
    (folder / "worker-corrupt").touch()
    buckets = [bytearray(b"abc"), bytearray(b"abc")]
    for bucket in buckets:
        failpoints.corrupt(memoryview(bucket))
    assert buckets == [bytearray([ord("a") ^ 0xFF, *b"bc"]), bytearray(b"abc")]
