"""The reports of a simulation and of its bugs, in the common form."""

from __future__ import annotations

from pathlib import Path

from tools.report.writing import BUILD, write
from tools.simulate.coverage import explained, missed, summary
from tools.simulate.runner import Batch
from weightsync.measures import Measure

KIND = "simulate"
ENOUGH = 5_000_000  # events, after which each row must have been taken, or be out of reach


def measures(batch: Batch, seconds: float, jobs: int, seed: int) -> list[Measure]:
    """What is bounded: what must hold and what must have been tried; the rest is told."""
    how = f"{batch.schedules} schedules from seed {seed}"
    rows = summary(batch.coverage)
    states, all_states = sum(row[1] for row in rows), sum(row[2] for row in rows)
    taken, all_rows = sum(row[3] for row in rows), sum(row[4] for row in rows)
    sides, all_sides = sum(row[5] for row in rows), sum(row[6] for row in rows)
    out = len(set(explained()) & set(missed(batch.coverage)))
    least = 1.0 if batch.events >= ENOUGH else None  # rare rows need many schedules
    return [
        Measure(name="violations", value=batch.violations, unit="schedules", bound=0, better="lower", how=how),
        Measure(name="schedules without a whole sync", value=batch.without_sync, unit="schedules", bound=0,
                better="lower", how=how),
        Measure(name="schedules without a fault", value=batch.without_fault, unit="schedules", bound=0,
                better="lower", how=how),
        Measure(name="states reached", value=states / all_states, unit="share", bound=least, better="higher",
                how=f"{states} of {all_states}"),
        Measure(name="transitions visited", value=min(1.0, taken / (all_rows - out)), unit="share", bound=least,
                better="higher", how=f"{taken} of {all_rows} rows; {out} can be reached by no driver"),
        Measure(name="sides of guards seen", value=sides / max(1, all_sides), unit="share", better="higher",
                how=f"{sides} of {all_sides}"),
        Measure(name="events", value=batch.events, unit="events", better="higher", how=how),
        Measure(name="events per schedule", value=batch.events / max(1, batch.schedules), unit="events",
                better="lower", how=how),
        Measure(name="syncs decided", value=batch.syncs, unit="syncs", better="higher", how=how),
        Measure(name="joins from engines", value=batch.coverage.joins, unit="joins", better="higher", how=how),
        Measure(name="leases prolonged", value=batch.coverage.renewals, unit="leases", better="higher", how=how),
        Measure(name="faults", value=batch.faults, unit="faults", better="higher", how=how),
        Measure(name="seconds", value=seconds, unit="s", better="lower", how=f"{jobs} processes"),
        Measure(name="events per second", value=batch.events / max(seconds, 1e-9), unit="events/s", better="higher",
                how=f"{jobs} processes"),
    ]  # fmt: skip


def save(measured: list[Measure], build: Path = BUILD) -> Path:
    """build/simulate/simulate.json."""
    return write(KIND, "simulate", measured, build=build)


def table(batch: Batch) -> str:
    """Coverage by machine, for people."""
    lines = [f"{'machine':14} {'states':>9} {'rows':>9} {'guards':>9}"]
    for name, states, all_states, taken, all_rows, sides, all_sides in summary(batch.coverage):
        lines.append(f"{name:14} {states:>4}/{all_states:<4} {taken:>4}/{all_rows:<4} {sides:>4}/{all_sides:<4}")
    left = [line for line in missed(batch.coverage) if line not in explained()]
    if left:
        lines.append(f"not taken ({len(left)}):")
        lines += [f"  {line}" for line in left]
    return "\n".join(lines)
