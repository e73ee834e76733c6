"""Processor seconds of this process and of all that it started, the living and the ended."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int | None = None) -> float:
    """User and system time, to a hundredth of a second."""
    own = pid or os.getpid()
    return _of(own) + sum(processor_seconds(child) for child in _children(own))


def _of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(fields[at]) for at in (11, 12, 13, 14)) / TICKS  # its own, and of children it has waited for


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
