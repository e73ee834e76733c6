"""Processes that outlive their starter, and proof that a process is one of them.

A record on disk holds the process id and the kernel's start time of that process. The id alone proves nothing: after
a crash or a reboot it may belong to somebody else. Only a process that matches both is ever signalled.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# Position of `starttime` (clock ticks since boot) among the fields that follow the program's name in /proc/PID/stat.
_START_TIME_FIELD = 19
_STATE_FIELD = 0


@dataclass(frozen=True)
class Record:
    """A process that was started here."""

    name: str
    pid: int
    start_time: int
    argv: tuple[str, ...]


def start_time(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Start time of process `pid` in ticks since boot; None where there is none or only its corpse (a zombie)."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in brackets and may itself hold brackets and blanks: fields count from the last bracket on.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[_STATE_FIELD] in "ZX" else int(fields[_START_TIME_FIELD])


def is_alive(record: Record, proc: Path = Path("/proc")) -> bool:
    """Whether the process of `record` runs: the same id AND the same start time."""
    return start_time(record.pid, proc) == record.start_time


class Keeper:
    """The processes of one cluster, recorded in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, name: str, argv: Sequence[str], log: Path, extra_env: Mapping[str, str] | None = None) -> Record:
        """Start `argv` in a session of its own, writing to `log`, and record it under `name`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        # posix_spawn, not subprocess: that one complains when the starter ends before its child.
        pid = os.posix_spawn(
            argv[0],
            list(argv),
            {**os.environ, **(extra_env or {})},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        record = Record(name, pid, start_time(pid) or 0, tuple(argv))
        path = self._folder / f"{name}.json"
        fresh = path.with_suffix(".fresh")
        fresh.write_text(json.dumps(asdict(record)), encoding="utf-8")
        fresh.replace(path)
        return record

    def records(self) -> dict[str, Record]:
        """What was started and not yet stopped, by name; whether it still runs is `is_alive`'s answer."""
        found: dict[str, Record] = {}
        for path in sorted(self._folder.glob("*.json")):
            fields = json.loads(path.read_text(encoding="utf-8"))
            found[fields["name"]] = Record(**{**fields, "argv": tuple(fields["argv"])})
        return found

    def stop(self, name: str, grace_seconds: float) -> bool:
        """End the process recorded under `name` and forget it. Returns whether it was running."""
        record = self.records().get(name)
        if record is None:
            return False
        ended = end(record.pid, record.start_time, grace_seconds)
        (self._folder / f"{name}.json").unlink(missing_ok=True)
        return ended


def end(pid: int, started: int, grace_seconds: float) -> bool:
    """End process `pid` if its start time is `started`: TERM, then KILL after `grace_seconds`.

    Returns whether such a process was running. The process is held by a descriptor from before the comparison to the
    last signal, so that no other process can take its id in between.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if start_time(pid) != started:
            return False
        signals = [(signal.SIGTERM, grace_seconds)] if grace_seconds > 0 else []
        for number, patience in (*signals, (signal.SIGKILL, 10.0)):
            _send(descriptor, number)
            if _ended(descriptor, patience):
                break
        _reap(pid)
        return True
    finally:
        os.close(descriptor)


def _send(descriptor: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return  # it ended by itself, which is what was wanted


def _ended(descriptor: int, patience_seconds: float) -> bool:
    waiter = select.poll()
    waiter.register(descriptor, select.POLLIN)
    return bool(waiter.poll(patience_seconds * 1000))


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # not this process's child: its own parent, or init, collects it


def wait_all_gone(pids: Sequence[int], deadline_seconds: float) -> list[int]:
    """Wait until none of `pids` runs. Returns those that still run at the deadline."""
    until = time.monotonic() + deadline_seconds
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            _ended(descriptor, max(0.0, until - time.monotonic()))
            _reap(pid)
        finally:
            os.close(descriptor)
    return [pid for pid in pids if start_time(pid) is not None]
