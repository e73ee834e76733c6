"""Who draws on an engine's link now: joiners read its sealed arenas, few at a time, each for as long as it asks
again; in a sync other engines read what it verifies. Pure.

A lease keeps nothing from anybody: a sync that needs the arena fills it, and its readers find other digests than they
were told. They learn the reason when they ask again. It bounds how many draw on one pod's link, no more.
"""

from weightsync.errors import Refused

MOST = 2  # readers at a time: each takes its share of the pod's link, from the engine's own traffic, too
SECONDS = 10.0  # without a word of its reader; then another may read
PASSED_SECONDS = 5.0  # since one asked what was verified in a sync; it asks again within a stall timeout


class Readers:
    """Leases by reader. most: at a time; seconds: of a lease."""

    def __init__(self, most: int = MOST, seconds: float = SECONDS) -> None:
        self.most = most
        self.seconds = seconds
        self._until: dict[str, float] = {}
        self._passed: dict[str, float] = {}

    def passes(self, reader: str, now: float) -> None:
        """It is told what was verified here in a sync, and reads it."""
        self._passed[reader] = now + PASSED_SECONDS

    def load(self, now: float) -> int:
        """How many draw on the link, for whichever reason."""
        self._passed = {reader: until for reader, until in self._passed.items() if now < until}
        return self.count(now) + len(self._passed)

    def count(self, now: float) -> int:
        """How many joiners read."""
        self._until = {reader: until for reader, until in self._until.items() if now < until}
        return len(self._until)

    def reads(self, reader: str, now: float) -> bool:
        """It has a lease."""
        return now < self._until.get(reader, now)

    def admit(self, reader: str, now: float) -> float:
        """Seconds for which it may read, from now on. Raises Refused, reason Busy, where others do."""
        if self.count(now) >= self.most and reader not in self._until:
            raise Refused(
                f"{len(self._until)} engines read from here already; ask another, or again", reason="Busy", status=503
            )
        self._until[reader] = now + self.seconds
        return self.seconds

    def end(self, reader: str) -> None:
        """It reads no more."""
        self._until.pop(reader, None)
