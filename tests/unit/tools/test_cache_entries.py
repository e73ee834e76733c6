"""A cache entry is complete or absent, and is built once however many ask for it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from tools.setup import cache, locks

SPAWN = multiprocessing.get_context("spawn")
DEADLINE_SECONDS = 30


def _fill(folder: Path) -> None:
    (folder / "file").write_text("complete")


def _build_and_count(base: Path, gate: object) -> None:
    def build(folder: Path) -> None:
        descriptor = os.open(base / "built", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, b"x")
        os.close(descriptor)
        _fill(folder)

    gate.wait(DEADLINE_SECONDS)  # type: ignore[attr-defined]
    cache.entry("thing", "key", build, base=base)


def _hold(path: Path, held: object) -> None:
    with locks.exclusive(path):
        held.set()  # type: ignore[attr-defined]
        signal.pause()


def test_an_entry_is_built_only_once(tmp_path: Path) -> None:
    """The second request returns the folder of the first without building."""
    first = cache.entry("thing", "key", _fill, base=tmp_path)
    assert cache.entry("thing", "key", pytest.fail, base=tmp_path) == first


def test_a_failed_build_leaves_no_entry(tmp_path: Path) -> None:
    """What a build wrote before it failed is not found as an entry, and the next build starts empty."""

    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise RuntimeError("no network")

    with pytest.raises(RuntimeError, match="no network"):
        cache.entry("thing", "key", fail, base=tmp_path)
    entry = cache.entry("thing", "key", _fill, base=tmp_path)
    assert [path.name for path in entry.iterdir()] == ["file"]


def test_processes_that_ask_at_once_build_once(tmp_path: Path) -> None:
    """Of four processes that ask for the same entry together, one builds it."""
    gate = SPAWN.Barrier(4)
    workers = [SPAWN.Process(target=_build_and_count, args=(tmp_path, gate)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE_SECONDS)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert (tmp_path / "built").read_text() == "x"


def test_a_lock_says_who_holds_it_and_ends_with_its_holder(tmp_path: Path) -> None:
    """Who waits learns the holder's process id; a killed holder holds nothing."""
    path = tmp_path / "lock"
    held = SPAWN.Event()
    holder = SPAWN.Process(target=_hold, args=(path, held))
    holder.start()
    assert held.wait(DEADLINE_SECONDS)
    said: list[str] = []

    def waiting(text: str) -> None:
        said.append(text)
        holder.kill()

    with locks.exclusive(path, waiting):
        assert said == [f"process {holder.pid}"]
    holder.join(DEADLINE_SECONDS)
