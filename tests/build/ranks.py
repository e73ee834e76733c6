"""Real processes of one gloo group, kept for the tests of a file: a scenario runs in all of them at once."""

import multiprocessing
import multiprocessing.connection
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE = 60.0  # seconds that gloo waits for another rank: more than any scenario may take
START = 30.0  # seconds that it may take to start


class Stuck(Exception):
    """A rank did not come to the end of a scenario in time, or its process ended."""


class Ranks:
    """``count`` processes, started by the first scenario, and anew after one that got stuck.

    folder: empty; each scenario is given one of its own for each rank.
    """

    def __init__(self, folder: Path, count: int = 2) -> None:
        self._folder = folder
        self._count = count
        self._runs = 0
        self._processes: list[Any] = []
        self._pipes: list[multiprocessing.connection.Connection] = []

    def run(self, scenario: Callable[..., Any], *arguments: Any, seconds: float = 30.0) -> list[Any]:
        """What ``scenario(rank, folder, *arguments)`` returns, by rank. It must be a function of a module.

        Raises AssertionError with the trace of each rank in which it raised, and Stuck with those that had ended by
        then where not all have within ``seconds``. A start has more time.
        """
        self._runs += 1
        if not self._processes:
            self._start()
            seconds += START
        for rank, pipe in enumerate(self._pipes):
            folder = self._folder / f"{self._runs}-{rank}"
            folder.mkdir(parents=True)
            pipe.send((scenario, folder, arguments))
        until = time.monotonic() + seconds
        answers = [self._answer(pipe, until) for pipe in self._pipes]
        if None in answers:
            self.close()
            raise Stuck(f"{scenario.__name__}{arguments} after {seconds} s, by rank: {answers}")
        wrong = [f"rank {rank}:\n{said}" for rank, (well, said) in enumerate(answers) if not well]
        if wrong:
            self.close()  # they may be in the middle of collectives that never met
        assert not wrong, "\n".join(wrong)
        return [said for _, said in answers]

    @staticmethod
    def _answer(pipe: multiprocessing.connection.Connection, until: float) -> Any:
        try:
            return pipe.recv() if pipe.poll(max(0.0, until - time.monotonic())) else None
        except EOFError:
            return None

    def _start(self) -> None:
        context = multiprocessing.get_context(
            "spawn"
        )  # a fork would take torch's threads along, and they would not run
        for rank in range(self._count):
            ours, theirs = context.Pipe()
            meet = self._folder / f"meet-{self._runs}"
            process = context.Process(target=_serve, args=(theirs, rank, self._count, meet), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
            process.close()
        self._processes, self._pipes = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _serve(pipe: multiprocessing.connection.Connection, rank: int, count: int, meet: Path) -> None:
    """A rank: runs what it is told, in its own process."""
    import torch  # not in the process of the tests, which only hands out work
    import torch.distributed as dist

    torch.set_num_threads(1)
    seconds = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=count, timeout=seconds)
    while True:
        try:
            scenario, folder, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, scenario(rank, folder, *arguments))
        except BaseException:  # noqa: BLE001 - told to the test, an interrupt too
            answer = (False, traceback.format_exc())
        pipe.send(answer)
