"""How many processors this process may use, and how many threads fill replicas with them."""

import os
from collections.abc import Mapping
from pathlib import Path

from weightsync import names
from weightsync.errors import InputError

CGROUP = Path("/sys/fs/cgroup")
MOST = 6  # threads: on 16 cores eight fill no faster than six, and take from those that write and check
RANKS_ENV = "LOCAL_WORLD_SIZE"  # torchrun's: ranks on this host, which publish at the same time


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Processors that this process may run on, no more than its control group's quota of version 2 or 1 pays for."""
    allowed = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def _quota(cgroup: Path) -> float | None:
    """Processors' worth of time; None where nothing limits it. Inside a container its files lie at the top."""
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        old = cgroup / "cpu"
        try:
            limit, period = (old / "cpu.cfs_quota_us").read_text(), (old / "cpu.cfs_period_us").read_text()
        except OSError:
            return None  # no control group to be seen: nothing to keep to
    try:
        return float(limit) / float(period) if float(limit) > 0 else None  # -1: version 1's "no limit"
    except (ValueError, ZeroDivisionError):
        return None  # version 2 writes "max"


def derived(cores: int, ranks: int) -> int:
    """Threads for one of so many ranks on so many cores. One core is left to the agent, which writes meanwhile; on
    two or fewer nothing is gained: copying, writing and checking take them all.
    """
    share = cores // max(ranks, 1)
    return 1 if share <= 2 else min(MOST, share - 1)


def fill_threads(given: int | None, environment: Mapping[str, str] = os.environ) -> int:
    """The Publisher's argument, else $WEIGHTSYNC_FILL_THREADS, else what the cores give. Raises InputError."""
    text = environment.get(names.FILL_THREADS_ENV, "")
    if given is None and text:
        if not (text.isascii() and text.isdigit()):
            raise InputError(f"{names.FILL_THREADS_ENV} is {text!r}: set a number of threads, 1 or more")
        given = int(text)
    if given is None:
        ranks = environment.get(RANKS_ENV, "")
        return derived(usable_cores(), int(ranks) if ranks.isascii() and ranks.isdigit() else 1)
    if given < 1:
        raise InputError(f"{given} threads cannot fill a replica: give 1 or more")
    return given
