"""Many schedules in several processes: figures, coverage, failures."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context

from tools.simulate import coverage
from tools.simulate.coverage import COVERAGE, Coverage
from tools.simulate.schedule import Failure, Ran, run

CHUNK = 40  # schedules of one piece of work
KEPT = 20  # failures that are kept whole


@dataclass
class Batch:
    """The sum of some schedules."""

    schedules: int = 0
    events: int = 0
    virtual: float = 0.0
    syncs: int = 0
    faults: int = 0
    without_sync: int = 0
    without_fault: int = 0
    violations: int = 0
    failures: list[Failure] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    def take(self, ran: Ran) -> None:
        """One more schedule."""
        self.schedules += 1
        self.events += ran.events
        self.virtual += ran.virtual
        self.syncs += ran.syncs
        self.faults += ran.faults
        if ran.failure is not None:
            self.violations += 1
            self.failures.append(ran.failure)
        else:
            self.without_sync += ran.syncs == 0
            self.without_fault += ran.faults == 0

    def add(self, other: Batch) -> None:
        """Another part."""
        for name in (
            "schedules",
            "events",
            "virtual",
            "syncs",
            "faults",
            "without_sync",
            "without_fault",
            "violations",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failures = (self.failures + other.failures)[:KEPT]
        self.coverage.add(other.coverage)


def piece(first: int, count: int) -> Batch:
    """Some schedules in this process."""
    coverage.install()
    COVERAGE.clear()
    batch = Batch()
    gc.disable()
    for seed in range(first, first + count):
        batch.take(run(seed))
    batch.coverage.add(COVERAGE)
    gc.enable()
    gc.collect()
    return batch


def pieces(first: int, count: int) -> Iterator[tuple[int, int]]:
    """Cut a range of seeds."""
    for start in range(first, first + count, CHUNK):
        yield start, min(CHUNK, first + count - start)


def many(first: int, count: int, jobs: int, progress: Callable[[Batch, float], None] | None = None) -> Batch:
    """All of them. progress: told now and then, with the seconds so far."""
    total, began = Batch(), time.monotonic()
    if jobs == 1:
        for part in pieces(first, count):
            total.add(piece(*part))
            if progress is not None:
                progress(total, time.monotonic() - began)
        return total
    gc.freeze()
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        waiting: list[Future[Batch]] = [pool.submit(piece, *part) for part in pieces(first, count)]
        for done in as_completed(waiting):
            total.add(done.result())
            if progress is not None:
                progress(total, time.monotonic() - began)
    return total
