"""The one thread that touches the model: it runs what others submit, and steps the scheduler in between.

As in SGLang, an exception that nobody foresaw (a custom weight loader's, say) ends the engine: the thread dies,
everything that waits for it fails, and the server leaves. An InputError is an answer, not an accident.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

import torch

from reference.scheduler import Scheduler
from weightsync.errors import EngineError, InputError

P = ParamSpec("P")
T = TypeVar("T")


class EngineDied(EngineError):
    """The model's thread has ended; the message says by what."""

    reason = "EngineDied"


class ModelThread:
    """on_death is called in the thread itself, after an accident, never after stop()."""

    def __init__(self, scheduler: Scheduler, on_death: Callable[[BaseException], None]) -> None:
        self.scheduler = scheduler
        self._on_death = on_death
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._gate = threading.Lock()  # between submit() and the end of the thread: no job may fall between
        self._ended = ""
        self._running: Future[Any] | None = None
        self._thread = threading.Thread(target=self._main, name="model", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """End after the step that runs now. Call it once."""
        self._jobs.put(None)
        self._thread.join(timeout)

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Run ``call`` between two steps; its result, its InputError, or EngineDied."""
        future: Future[T] = Future()
        with self._gate:
            if self._ended:
                future.set_exception(EngineDied(self._ended))
            else:
                self._jobs.put((future, lambda: call(*args, **kwargs)))
        return future

    def _main(self) -> None:
        torch.set_num_threads(1)  # OpenMP keeps this by thread
        try:
            self._loop()
        except BaseException as error:
            # First the process, then the answers: whoever waits must see a cut connection, not a polite refusal.
            self._on_death(error)
            self._end(f"the model's thread died: {type(error).__name__}: {error}")
            raise
        self._end("the engine is shutting down")

    def _loop(self) -> None:
        while True:
            if self._jobs.empty() and self.scheduler.has_work:
                self.scheduler.step()
                continue
            job = self._jobs.get()
            if job is None:
                return
            future, call = job
            if not future.set_running_or_notify_cancel():
                continue
            self._running = future
            try:
                future.set_result(call())
            except InputError as error:
                future.set_exception(error)
            self._running = None

    def _end(self, reason: str) -> None:
        with self._gate:
            self._ended = reason
        failed = [] if self._running is None else [self._running]
        while not self._jobs.empty():
            job = self._jobs.get_nowait()
            if job is not None and job[0].set_running_or_notify_cancel():
                failed.append(job[0])
        for future in failed:
            future.set_exception(EngineDied(reason))
