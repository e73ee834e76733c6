"""A process that was stopped stands still before anybody goes on with it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tools.world.processes import WorldError, stands_still

THREADS = "import threading; [threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start() for _ in range(3)]"


def test_a_stopped_process_uses_no_more_time_and_one_that_runs_is_told_of() -> None:
    """All its threads: from then on its clock stands."""
    busy = subprocess.Popen([sys.executable, "-c", THREADS])
    try:
        with pytest.raises(WorldError, match=rf"process {busy.pid} .* threads"):
            stands_still(busy.pid, 0.1)
        os.kill(busy.pid, signal.SIGSTOP)
        stands_still(busy.pid)
        used = [_used(busy.pid) for _ in range(2) if time.sleep(0.1) is None]
        assert used[0] == used[1]
    finally:
        busy.kill()
        busy.wait()


def test_what_is_gone_stands_still() -> None:
    """It was killed meanwhile."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stands_still(gone.pid, 0.1)


def _used(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - one line
        return " ".join(stat.read().rpartition(")")[2].split()[11:13])
