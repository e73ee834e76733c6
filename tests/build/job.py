"""The demo's job, followed by what its trainer says."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty
from typing import Any

from tools.demo.story import Event, TrainerSaid
from tools.demo.watching import Watching, now_ms

Json = dict[str, Any]


class Job:
    """What rank 0 has said so far; a torn or a stale answer, or a trainer that fails, fails the test at once."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self.steps: list[Json] = []

    def next(self, what: str, holds: Callable[[Json], bool], seconds: float, since: int | None = None) -> Json:
        """The first of its lines, said since then or from now on, for which that holds. Raises AssertionError.

        what: named where none comes; since: in milliseconds since 1970. Nothing is found twice.
        """
        began, end = now_ms() if since is None else since, time.monotonic() + seconds
        while time.monotonic() < end:
            said = self._said()
            if said is not None and said["unix_ms"] >= began and holds(said):
                return said
        raise AssertionError(f"not within {seconds:.0f} s: {what}; the last step: {self.steps[-1:]}")

    def publishing(self, seconds: float = 60.0) -> Json:
        """A publish whose sync is under way: where the log came late, and its end with it, the next one's."""
        while True:
            said = self.next("a publish that begins", lambda said: said["event"] == "publishing", seconds)
            while (later := self._said(0.0)) is not None:
                said = later
            if said["event"] == "publishing":
                return said

    def step(self, number: int = 0, seconds: float = 60.0) -> Json:
        """The step of that number, though it may have ended before it was asked for; or any that ends now."""
        wanted, since = f"the end of step {number or 'any'}", 0 if number else None
        return self.next(wanted, lambda said: said["event"] == "step" and number in (0, said["step"]), seconds, since)

    def _said(self, seconds: float = 0.2) -> Json | None:
        """Its next line, if there is one within that time."""
        end = time.monotonic() + seconds
        event: Event | None = None
        while not isinstance(event, TrainerSaid):
            try:
                event = self._watching.events.get(timeout=max(0.0, end - time.monotonic()))
            except Empty:
                return None
        assert event.document["event"] not in ("torn", "stale", "failed", "summary"), event.document
        if event.document["event"] == "step":
            self.steps.append(event.document)
        return event.document
