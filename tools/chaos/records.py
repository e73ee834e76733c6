"""What agents and trainers have said: lines of JSON in their logs, each with its time."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Records:
    """One growing log. Lines that are no JSON object are passed over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._lines: list[Line] = []

    def lines(self) -> list[Line]:
        """All so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read += len(whole)
            self._lines += parse(whole.decode(errors="replace").splitlines())
        return self._lines


def parse(lines: list[str]) -> Iterator[Line]:
    """The lines that are one object of JSON. Pure."""
    for line in lines:
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


def moment(line: Line) -> float:
    """When an agent wrote it: seconds since 1970."""
    return datetime.fromisoformat(line["timestamp"]).timestamp() if "timestamp" in line else 0.0


def first_after(lines: list[Line], at: float) -> float | None:
    """When the first line from ``at`` on was written."""
    return next((moment(line) for line in lines if moment(line) >= at), None)


def committed_after(lines: list[Line], at: float) -> float | None:
    """When the engine's first commit that ended from ``at`` on had ended."""
    for line in lines:
        if moment(line) >= at and line.get("was") == "COMMITTING" and line.get("now") == "CURRENT":
            return moment(line)
    return None
