"""How the copies out of one tensor in host memory are shared out to threads (strands.py).

A tensor that stays as it is until the publish ends is queued: each bucket's part is copied and digested by the thread
that has the bucket, in steps that stay in that core's cache. One that may change as soon as it was taken is copied by
all threads at once; the digests, which read the arena alone, follow behind.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch

from weightsync.convert.digesting import BucketDigester
from weightsync.convert.portion import Copy
from weightsync.convert.strands import FillThreads, Job, Strand

log = logging.getLogger(__name__)

Done = Callable[[int, tuple[int, ...]], None]  # bytes that are in the arena, buckets that their tensor has left

LEAST = 2 << 20  # bytes: a smaller tensor is copied before the threads have woken up
PART = 1 << 20  # bytes that one thread copies at least
SMALL = 128 << 10  # bytes: handing over a smaller tensor's copy costs as much as the copy
BATCH = 64  # so many of these are handed over together
# Threads that make up for digests of what has left the cache: copies in parts take 1.4 to 1.8 times the
# processor time.
ENOUGH = 3


class _InOrder:
    """Tells of a tensor's copies in their order, whichever ends first: that a copy leaves a bucket presumes that
    those before it are done (fill.py)."""

    def __init__(self, copies: Sequence[Copy], done: Done) -> None:
        self._copies = copies
        self._done = done
        self._left = [0] * len(copies)
        self._told = 0
        self._lock = threading.Lock()

    def after(self, number: int, jobs: Sequence[tuple[Strand, Job]]) -> list[tuple[Strand, Job]]:
        """The jobs that make copy ``number``, each with what follows it."""
        self._left[number] = len(jobs)
        return [(strand, partial(self._run, number, job)) for strand, job in jobs]

    def _run(self, number: int, job: Job) -> None:
        job()
        with self._lock:
            self._left[number] -= 1
            while self._told < len(self._copies) and not self._left[self._told]:
                copy = self._copies[self._told]
                self._told += 1
                self._done(copy.nbytes, copy.leaves)


class SharedCopies:
    """The copies of one replayer. Others may share the threads, not the digests."""

    def __init__(self, threads: FillThreads, digests: BucketDigester) -> None:
        self._threads = threads
        self._digests = digests
        self._held: dict[Strand, list[Job]] = {}  # what small tensors leave to be done
        self._count = 0

    def keep(self, name: str, copies: Sequence[Copy], source: torch.Tensor, done: Done) -> None:
        """Queue the copies: the tensor must stay as it is until they are drained, after a flush()."""
        give = self._hold if source.nbytes < SMALL else self._give
        for strand, job in self._by_bucket(name, copies, source, done):
            give(strand, job)

    def pass_on(self, name: str, copies: Sequence[Copy], source: torch.Tensor, done: Done) -> None:
        """Copy. When it returns the tensor may change; its digests and what is told of them may still follow."""
        count, small = self._threads.count, source.nbytes < LEAST
        if small:
            for copy in copies:
                for job in self._parts(name, copy, source, 1):
                    job()
        else:
            jobs = self._by_bucket(name, copies, source, done)
            if len(jobs) >= count or count < ENOUGH:
                self.flush()
                self._threads.run(jobs)
                return
            self._threads.run([(None, job) for copy in copies for job in self._parts(name, copy, source, count)])
        give = self._hold if small else self._give
        for strand, job in self._behind(copies, source, done):
            give(strand, job)

    def flush(self) -> None:
        """Hand over what is held back, before all is waited for."""
        held = self._held
        self.drop()
        for strand, jobs in held.items():
            self._threads.submit(strand, partial(_each, jobs))

    def drop(self) -> None:
        """Forget what is held back."""
        self._held = {}
        self._count = 0

    def _hold(self, strand: Strand, job: Job) -> None:
        """Do what is little at once, or where it has to wait for more, together with more."""
        if strand is None or (strand not in self._held and self._threads.is_idle(strand)):
            job()
            return
        self._held.setdefault(strand, []).append(job)
        self._count += 1
        if self._count >= BATCH:
            self.flush()

    def _give(self, strand: Strand, job: Job) -> None:
        if strand in self._held:  # a bucket's copies stay in their order
            held = self._held.pop(strand)
            self._count -= len(held)
            self._threads.submit(strand, partial(_each, held))
        self._threads.submit(strand, job)

    def _by_bucket(
        self, name: str, copies: Sequence[Copy], source: torch.Tensor, done: Done
    ) -> list[tuple[Strand, Job]]:
        """Copies and digests, each bucket's in its strand."""
        made = [self._jobs(name, copy, copy.part(source)) for copy in copies]
        if len(made) == 1 and len(made[0]) == 1:  # nearly all of a hundred thousand experts' tensors
            ((strand, job),) = made[0]
            return [(strand, partial(_then, job, done, copies[0]))]
        following = _InOrder(copies, done)
        return [each for number, jobs in enumerate(made) for each in following.after(number, jobs)]

    def _jobs(self, name: str, copy: Copy, part: torch.Tensor) -> list[tuple[Strand, Job]]:
        move = copy.mover(part)
        if move is None:
            return [(None, partial(copy.convert, name, part))]
        return [
            (self._strand(bucket), partial(self._digests.copy, start, stop, move))
            for bucket, start, stop in self._digests.parts(*copy.extent)
        ]

    def _parts(self, name: str, copy: Copy, source: torch.Tensor, most: int) -> list[Job]:
        """At most so many copies that together make one, without digests."""
        count = max(1, min(most, copy.nbytes // PART))
        part = copy.part(source)
        move = copy.mover(part)
        if move is None:
            return [partial(copy.convert, name, part, rows) for rows in _cut(0, copy.rows, count)]
        return [partial(move, *span) for span in _cut(*copy.extent, count)]

    def _behind(self, copies: Sequence[Copy], source: torch.Tensor, done: Done) -> list[tuple[Strand, Job]]:
        """The digests of what was copied. They hold no tensor: it may be gone when they run."""
        following, jobs = _InOrder(copies, done), list[tuple[Strand, Job]]()
        for number, copy in enumerate(copies):
            parts = [] if copy.mover(copy.part(source)) is None else self._digests.parts(*copy.extent)
            takes = [(self._strand(part[0]), partial(self._digests.take, *part)) for part in parts]
            jobs += following.after(number, takes or [(None, _nothing)])
        return jobs

    def _strand(self, bucket: int | None) -> Strand:
        return None if bucket is None else (id(self._digests), bucket)


def _cut(start: int, stop: int, count: int) -> list[tuple[int, int]]:
    step = max(1, -(-(stop - start) // count))
    return [(at, min(at + step, stop)) for at in range(start, stop, step)]


def _then(job: Job, done: Done, copy: Copy) -> None:
    job()
    done(copy.nbytes, copy.leaves)


def _each(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job()


def _nothing() -> None:
    """What remains to be done for a copy whose bytes have no digest here."""


def fill_threads(count: int) -> FillThreads | None:
    """So many threads, in which torch starts none of its own; None for one, the caller's."""
    if count > 1 and not _kept_alone():
        log.warning(
            "torch's threads cannot be held back in this process: replicas are filled by one thread, not %d", count
        )
        return None
    return FillThreads(count, alone) if count > 1 else None


@cache
def _kept_alone() -> bool:
    """Whether alone() works here: where not, torch would start as many threads for each of ours."""
    found: list[bool] = []
    trial = threading.Thread(target=lambda: found.append(alone()))
    trial.start()
    trial.join()
    return found == [True]


def alone() -> bool:
    """Have what torch does in the calling thread stay in it, and nothing change in any other; whether that holds.

    torch.set_num_threads would set the number of every thread that the trainer has not started yet.
    """
    torch.get_num_threads()  # torch sets a thread's number when it first asks: what was set before would be lost
    set_threads = getattr(ctypes.CDLL(None), "omp_set_num_threads", None)
    if set_threads is not None:
        set_threads(1)
    return torch.get_num_threads() == 1
