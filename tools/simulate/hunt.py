"""Looks for what was broken on purpose: each bug, and each mutant of a table, until a schedule finds it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from tools.report.writing import write
from tools.simulate import coverage, faults
from tools.simulate.bugs import Patches
from tools.simulate.coverage import COVERAGE, Key
from tools.simulate.mutants import Mutant, every
from tools.simulate.relay_bugs import BUGS
from tools.simulate.schedule import Failure, run
from weightsync.measures import Measure

Course = tuple[int, int]  # a seed, and which course of its schedule: 0 is its own

INDEXED = 3600  # schedules that tell which seeds take which row
SEEDS = 60  # of each row; where fewer are known, they are run in other courses, too
STEERED = 0.6  # share of the mutants' schedules that aim at rare moments


@dataclass(frozen=True, slots=True)
class Found:
    """schedules: tried; number: of the invariant that failed, None where none did; taken: its place was reached."""

    name: str
    schedules: int
    number: int | None
    taken: bool = True


def search(
    courses: Iterable[Course], install: Callable[[], None], mend: Callable[[], None]
) -> tuple[int, Failure | None]:
    """Run until an invariant fails that holds without the bug: how many schedules, and how."""
    tried = 0
    gc.disable()
    for course in courses:
        tried += 1
        failure = _broken(course, install, mend)
        if tried % 20 == 0:
            gc.collect()
        if failure is not None and _run(course) is None:
            return tried, failure
    gc.enable()
    return tried, None


def _run(course: Course) -> Failure | None:
    seed, again = course
    return run(seed, again=again).failure


def _broken(course: Course, install: Callable[[], None], mend: Callable[[], None]) -> Failure | None:
    install()
    try:
        return _run(course)
    finally:
        mend()


def first_courses(seeds: Iterable[int]) -> list[Course]:
    """Their own."""
    return [(seed, 0) for seed in seeds]


def seeded(name: str, seed: int, budget: int) -> Found:
    """One bug of the registry."""
    bug = BUGS[name]
    bug.aim()
    try:
        tried, failure = search(first_courses(range(seed, seed + budget)), bug.install, bug.mend)
        return Found(name, tried, None if failure is None or slipped(failure) else failure.number)
    finally:
        bug.remove()


def slipped(failure: Failure) -> bool:
    """What was called changed, and the bug did not: it breaks itself, and shows nothing of the protocol."""
    return failure.number == 0 and failure.detail.startswith("TypeError")


@contextmanager
def steered() -> Iterator[None]:
    """More schedules aim at rare moments: many rows are taken in these alone."""
    patches = Patches()
    patches.set(faults, "STEERED", STEERED)
    try:
        yield
    finally:
        patches.undo()


@steered()
def index(seed: int, count: int) -> dict[tuple[Key, bool], list[int]]:
    """Which seeds take a row, and (True) meet its guard when it does not hold."""
    coverage.install()
    found: dict[tuple[Key, bool], list[int]] = {}
    gc.disable()
    for each in range(seed, seed + count):
        COVERAGE.clear()
        run(each)
        for counter, guard in ((COVERAGE.rows, False), (COVERAGE.unheld, True)):
            for key in counter:
                seeds = found.setdefault((key, guard), [])
                if len(seeds) < SEEDS:
                    seeds.append(each)
        if each % 40 == 0:
            gc.collect()
    return found


@steered()
def mechanical(mutant: Mutant, seeds: list[int], more: range) -> Found:
    """One mutant: first the seeds that reach the place, in other courses where they are few, then some others."""
    patches = Patches()
    times = SEEDS // len(seeds) if seeds else 0
    near = [(seed, again) for again in range(times) for seed in seeds]
    far = first_courses(more if seeds else ())
    tried, failure = search([*near, *far], lambda: mutant.install(patches), patches.undo)
    return Found(mutant.name, tried, None if failure is None else failure.number, taken=bool(seeds))


def main(*, seeded_: bool, mechanical_: bool, budget: int, jobs: int, seed: int) -> int:
    """Returns the exit status."""
    good = True
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        if seeded_:
            found = list(pool.map(seeded, BUGS, [seed] * len(BUGS), [budget] * len(BUGS)))
            for each in found:
                print(line(each), f"- {BUGS[each.name].sentence}")
            good &= tell("bugs", found, least=0.95, budget=budget)
        if mechanical_:
            began = time.monotonic()
            parts = [(seed + i * (INDEXED // jobs), INDEXED // jobs) for i in range(jobs)]
            known: dict[tuple[Key, bool], list[int]] = {}
            for part in pool.map(index, *zip(*parts, strict=True)):
                for key, seeds in part.items():
                    known[key] = (known.get(key, []) + seeds)[:SEEDS]
            print(f"indexed {INDEXED} schedules in {time.monotonic() - began:.0f} s")
            mutants = every()
            places = [known.get((mutant.key, mutant.guard), []) for mutant in mutants]
            more = [range(seed, seed + budget // 25)] * len(mutants)
            found = list(pool.map(mechanical, mutants, places, more, chunksize=4))
            for each in found:
                if each.number is None:
                    print(line(each))
            good &= tell("mutants", found, least=0.9, budget=budget)
    return 0 if good else 1


def line(found: Found) -> str:
    """One result in words."""
    if found.number is not None:
        return f"found    {found.name} (invariant {found.number}, {found.schedules} schedules)"
    if not found.taken:
        return f"UNREACHED {found.name}"
    return f"SURVIVES {found.name} ({found.schedules} schedules)"


def tell(name: str, found: list[Found], *, least: float, budget: int) -> bool:
    """Write build/simulate/<name>.json; whether the bound holds."""
    reached = [each for each in found if each.taken]
    share = sum(each.number is not None for each in reached) / max(1, len(reached))
    survivors = [each.name for each in reached if each.number is None]
    how = f"at most {budget} schedules each; survive: {', '.join(survivors) or 'none'}"
    measures = [
        Measure(name=f"{name} found", value=share, unit="share", bound=least, better="higher", how=how[:4000]),
        Measure(name=f"{name} tried", value=len(reached), unit=name, better="higher", how="reached by a schedule"),
        Measure(name=f"{name} unreached", value=len(found) - len(reached), unit=name, better="lower",
                how="no schedule of the index takes the row"),
    ]  # fmt: skip
    path = write("simulate", name, measures)
    print(f"{name}: {share:.1%} of {len(reached)} found; report: {path}")
    return all(measure.holds for measure in measures)
