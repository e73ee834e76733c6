"""Waiting for a condition, with a deadline, while the programs that bring it about are watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.cluster.errors import ClusterError
from tools.cluster.processes import Record, is_alive
from tools.setup.commands import tail

PAUSE_SECONDS = 0.05


def until(
    what: str, condition: Callable[[], bool], watched: Sequence[Record], logs: Path, deadline_seconds: float
) -> None:
    """Return when `condition` holds.

    Raises:
        ClusterError: one of `watched` has ended, or the deadline has passed; with the end of its log in `logs`.
    """
    limit = time.monotonic() + deadline_seconds
    while not condition():
        for record in watched:
            if not is_alive(record):
                log = logs / f"{record.name}.log"
                raise ClusterError(f"{record.name} ended while waiting for {what}; {log} ends with:\n{tail(log)}")
        if time.monotonic() > limit:
            log = logs / f"{watched[-1].name}.log"
            raise ClusterError(f"no {what} after {deadline_seconds:.0f} s; {log} ends with:\n{tail(log)}")
        time.sleep(PAUSE_SECONDS)
