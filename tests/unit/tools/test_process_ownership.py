"""Only a process that was started here is ever signalled."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tools.cluster import processes

SLEEP = ["/bin/sleep", "60"]
STUBBORN = ["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 60 & wait; done"]
DEADLINE_SECONDS = 10.0


@pytest.fixture
def keeper(tmp_path: Path) -> processes.Keeper:
    """A keeper whose processes are ended by the tests that start them."""
    return processes.Keeper(tmp_path / "records")


def test_a_started_process_is_recorded_and_ended(keeper: processes.Keeper, tmp_path: Path) -> None:
    """Alive after the start, gone and forgotten after the stop."""
    record = keeper.start("sleeper", SLEEP, tmp_path / "log")
    assert keeper.records() == {"sleeper": record}
    assert processes.is_alive(record)
    assert keeper.stop("sleeper", DEADLINE_SECONDS)
    assert not processes.is_alive(record)
    assert keeper.records() == {}


def test_a_reused_process_id_is_left_alone(keeper: processes.Keeper, tmp_path: Path) -> None:
    """A process with the recorded id and another start time is not ended."""
    record = keeper.start("sleeper", SLEEP, tmp_path / "log")
    stranger = replace(record, start_time=record.start_time - 1)
    assert not processes.is_alive(stranger)
    assert not processes.end(stranger.pid, stranger.start_time, DEADLINE_SECONDS)
    assert processes.is_alive(record)
    assert keeper.stop("sleeper", DEADLINE_SECONDS)


def test_a_process_that_ignores_the_polite_signal_is_killed(keeper: processes.Keeper, tmp_path: Path) -> None:
    """Gone although it ignores TERM."""
    record = keeper.start("stubborn", STUBBORN, tmp_path / "log")
    limit = time.monotonic() + DEADLINE_SECONDS
    while "ready" not in (tmp_path / "log").read_text() and time.monotonic() < limit:
        time.sleep(0.01)
    assert keeper.stop("stubborn", grace_seconds=0.05)
    assert not processes.is_alive(record)


def test_a_dead_process_counts_as_gone_before_it_is_collected(tmp_path: Path) -> None:
    """A zombie has no start time: nothing runs any more."""
    pid = os.posix_spawn("/bin/true", ["/bin/true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    assert processes.start_time(pid) is None
    os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        pytest.param("7 (sleep) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0", 4711, id="a plain name"),
        pytest.param(
            "7 (a) b (c)) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0", 4711, id="brackets in the name"
        ),
        pytest.param("7 (sleep) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0", None, id="a zombie"),
    ],
)
def test_the_start_time_is_read_from_the_kernel_s_text(tmp_path: Path, stat: str, expected: int | None) -> None:
    """The 22nd field, whatever the program's name holds."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(stat)
    assert processes.start_time(7, tmp_path) == expected


def test_no_process_has_no_start_time(tmp_path: Path) -> None:
    """None for an id that nobody has."""
    assert processes.start_time(7, tmp_path) is None
