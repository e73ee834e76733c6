"""What the user sees: one line per step, with the seconds it took, on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

HEARTBEAT_SECONDS = 30.0


class Step:
    """One step of the work; its outcome is printed when it ends."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcome = "done"
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the step began."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """Print a line about this step while it runs."""
        sys.stderr.write(f"[{self.seconds:7.1f} s] {self.name}: {text}\n")
        sys.stderr.flush()

    def end(self, outcome: str) -> None:
        """Set what the closing line says."""
        self.outcome = outcome


@contextmanager
def step(name: str) -> Iterator[Step]:
    """Announce `name`'s end with its seconds, and every half minute that it is still at work."""
    this = Step(name)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            this.say("still at work")

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield this
    except BaseException:
        this.end("failed")
        raise
    finally:
        ended.set()
        this.say(this.outcome)
