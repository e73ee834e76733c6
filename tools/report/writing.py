"""Writes a report where the table finds it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.report.environment import describe
from weightsync.measures import Measure, Measures

BUILD = Path(__file__).resolve().parents[2] / "build"


def write(
    kind: str,
    name: str,
    measures: Iterable[Measure],
    *,
    conditions: Mapping[str, str | int | float] | None = None,
    build: Path = BUILD,
) -> Path:
    """build/<kind>/<name>.json, replaced at once. conditions: further facts beside those of the machine."""
    report = Measures(environment={**describe(), **(conditions or {})}, measures=tuple(measures))
    path = build / kind / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(report.model_dump(mode="json"), indent=2) + "\n")
    temporary.replace(path)
    return path
