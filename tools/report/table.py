"""Prints every report under build/ as one table; exit status 1 where a bound is broken or a report unreadable."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tools.report.writing import BUILD
from weightsync.errors import InputError
from weightsync.measures import Measure, Measures


def find(build: Path) -> list[Path]:
    """The reports: build/<kind>/<name>.json that hold measures; other JSON of a build is passed over."""
    return sorted(path for path in build.glob("*/*.json") if '"measures"' in path.read_text(errors="replace"))


def number(value: float) -> str:
    """A figure with as many digits as it deserves: whole numbers whole, others with four significant digits."""
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"


def bound(measure: Measure) -> str:
    """The bound as a condition on the value."""
    if measure.bound is None:
        return ""
    return f"{'>=' if measure.better == 'higher' else '<='} {number(measure.bound)}"


def table(reports: Sequence[tuple[str, Measures]]) -> Table:
    """One row per measure; a broken bound is said in words too, for terminals without colours."""
    made = Table("report", "measure", "value", "unit", "bound", "", "how", highlight=False)
    for name, report in reports:
        for measure in report.measures:
            verdict = "" if measure.bound is None else "ok" if measure.holds else "[bold red]BROKEN[/]"
            value = f"[{'default' if measure.holds else 'bold red'}]{number(measure.value)}[/]"
            made.add_row(name, measure.name, value, measure.unit, bound(measure), verdict, measure.how)
    return made


def main(arguments: list[str], console: Console | None = None) -> int:
    """Exit status: 0 where every bound holds, 1 where one is broken, a report is unreadable, or none was found."""
    parser = argparse.ArgumentParser(prog="report", description=__doc__)
    parser.add_argument("build", nargs="?", type=Path, default=BUILD, help="the folder that holds <kind>/<name>.json")
    build: Path = parser.parse_args(arguments).build
    screen = console or Console()
    reports: list[tuple[str, Measures]] = []
    unreadable: list[InputError] = []
    for path in find(build):
        try:
            reports.append((f"{path.parent.name}/{path.stem}", Measures.load(path)))
        except InputError as error:
            unreadable.append(error)
    if not reports and not unreadable:
        screen.print(f"no report under {build}: run a benchmark first, such as make bench-transfer")
        return 1
    screen.print(table(reports))
    broken = [f"{name}: {measure.name}" for name, report in reports for measure in report.broken]
    for problem in unreadable:
        screen.print(f"unreadable: {problem}", markup=False)
    if broken:
        screen.print(f"broken bounds: {', '.join(broken)}", markup=False)
    return 1 if broken or unreadable else 0
