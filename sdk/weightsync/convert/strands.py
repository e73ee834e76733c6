"""Threads that fill arenas: jobs in strands. No torch.

Jobs of one strand run one after another, as they were given; those of different strands at once. A bucket is a
strand: its digest goes on from copy to copy. Threads live from the first job of a publish to drain() or stop(), so a
trainer that forks between publishes takes none along.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial

Job = Callable[[], object]
Strand = Hashable | None  # None: a job that waits for no other


class FillThreads:
    """count: threads. prepare: run first in each. One thread gives jobs; the replayers of one publish share them.

    What a job raises is raised where jobs are given or waited for, once every thread has ended.
    """

    def __init__(self, count: int, prepare: Callable[[], object] = lambda: None) -> None:
        self.count = count
        self._prepare = prepare
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # the threads wait for strands
        self._progress = threading.Condition(self._lock)  # who gives the jobs waits for them
        self._ready: deque[tuple[Strand, deque[Job]]] = deque()  # strands that have jobs and no thread
        self._strands: dict[Strand, deque[Job]] = {}  # those that have jobs or a thread
        self._running = 0
        self._error: BaseException | None = None
        self._ending = False
        self._threads: list[threading.Thread] = []

    def submit(self, strand: Strand, job: Job) -> None:
        """Have the job run.

        Waits while more strands are ready than the threads will soon take: a loop that gives jobs holds the
        interpreter, for 5 ms at a time, against threads that need it for each step of a copy.
        """
        if len(self._ready) >= 2 * self.count:
            self._wait(lambda: len(self._ready) <= self.count)
        with self._lock:
            if self._error is None:
                self._put(strand, job)
        self._raise()

    def is_idle(self, strand: Strand) -> bool:
        """All its jobs are done: who gives them may as well do the next."""
        return strand not in self._strands

    def run(self, jobs: Sequence[tuple[Strand, Job]]) -> None:
        """Have these run and wait until all have. No thread holds what a job held when it returns.

        One that waits for no other is run here: to hand it over would gain nothing.
        """
        if len(jobs) == 1 and self.is_idle(jobs[0][0]):
            jobs[0][1]()
            return
        left = len(jobs)

        def counted(one: list[Job]) -> None:
            nonlocal left
            one.pop()()
            with self._lock:
                left -= 1
                if not left:
                    self._progress.notify_all()

        for strand, job in jobs:
            self.submit(strand, partial(counted, [job]))
        self._wait(lambda: not left)

    def drain(self, useless: Callable[[], bool] = lambda: False) -> None:
        """Wait for all jobs and end the threads. Interrupted, or once they are ``useless`` (asked whenever a strand
        is through), it drops those that have not begun."""
        try:
            self._wait(lambda: useless() or not (self._ready or self._running))
        finally:
            self.stop()

    def stop(self) -> None:
        """Let what runs come to its end, run nothing else, end the threads. What was raised is forgotten."""
        with self._lock:
            self._ending = True
            self._drop()
            self._work.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._error, self._ending = None, False

    def _put(self, strand: Strand, job: Job) -> None:
        jobs = self._strands.get(strand)
        if jobs is not None:
            jobs.append(job)
            return
        jobs = deque([job])
        if strand is not None:
            self._strands[strand] = jobs
        self._ready.append((strand, jobs))
        self._work.notify()
        if len(self._threads) < self.count:
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"weightsync-fill-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the container has as many threads as it may
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _wait(self, until: Callable[[], bool]) -> None:
        with self._lock:
            self._progress.wait_for(lambda: self._error is not None or until())
        self._raise()

    def _raise(self) -> None:
        error = self._error
        if error is not None:
            self.stop()
            raise error

    def _drop(self) -> None:
        for jobs in (*self._strands.values(), *(jobs for _, jobs in self._ready)):
            jobs.clear()
        self._ready.clear()
        self._strands.clear()

    def _run(self) -> None:
        try:
            self._prepare()
        except BaseException as error:  # noqa: BLE001 - raised again where the jobs come from
            self._leave(error)
            return
        while (taken := self._next()) is not None:
            self._through(*taken)

    def _next(self) -> tuple[Strand, deque[Job]] | None:
        """A strand, once one is ready; None when the threads are to end."""
        with self._lock:
            self._work.wait_for(lambda: self._ready or self._ending)
            if not self._ready:
                return None
            self._running += 1
            if len(self._ready) <= self.count + 1:
                self._progress.notify_all()
            return self._ready.popleft()

    def _through(self, strand: Strand, jobs: deque[Job]) -> None:
        """All jobs of a strand, those that come meanwhile too: its bucket stays with one thread."""
        try:
            while (job := self._job(strand, jobs)) is not None:
                job()
                del job  # it holds a tensor
        except BaseException as error:  # noqa: BLE001 - raised again where the jobs come from
            self._leave(error, running=1)
        else:
            self._leave(None, running=1)

    def _job(self, strand: Strand, jobs: deque[Job]) -> Job | None:
        with self._lock:
            if jobs:
                return jobs.popleft()
            if self._strands.get(strand) is jobs:
                del self._strands[strand]
            return None

    def _leave(self, error: BaseException | None, running: int = 0) -> None:
        """A strand is through, or failed; told at once: who waits for an end must see the error by then."""
        with self._lock:
            self._running -= running
            if error is not None:
                self._error = self._error or error
                self._drop()
            self._progress.notify_all()
