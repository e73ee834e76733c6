"""Who reads from one engine, by what it answered: a count apart from that of Lending; and invariant 15 of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.simulate.invariants import Violation
from weightsync.version import Version
from weightsync.wire.v1 import LeaseRequest


@dataclass
class Leases:
    """Of one life of one engine's agent. until: by reader, and what it was lent."""

    where: str
    most: int
    until: dict[str, tuple[float, Version]] = field(default_factory=dict)

    def _now(self, now: float) -> None:
        self.until = {reader: each for reader, each in self.until.items() if now < each[0]}

    def lent(self, request: LeaseRequest, seconds: float, now: float, *, own: bool) -> None:
        """It may read, or go on. own: it asked for what the engine serves, or reads itself."""
        self._now(now)
        before = self.until.get(request.reader)
        again = before is not None and before[1] == request.version
        lends_its_own(self.where, request.version.name, own=own, again=again)
        self.until[request.reader] = now + seconds, request.version
        few_at_a_time(self.where, len(self.until), self.most)

    def refused(self, request: LeaseRequest, reason: str, now: float, *, lies: bool) -> None:
        """It may not. lies: all that it asked for lies in the engine's arenas, to be read."""
        self._now(now)
        before = self.until.get(request.reader)
        if before is not None and before[1] == request.version:
            reads_on(self.where, request.version.name, reason, lies=lies)
        if reason == "Busy":
            full_of_readers(self.where, sum(reader != request.reader for reader in self.until), self.most)
        else:
            self.ended(request.reader)

    def ended(self, reader: str) -> None:
        """It reads no more."""
        self.until.pop(reader, None)


def few_at_a_time(where: str, readers: int, most: int) -> None:
    """15. Each takes its share of the pod's link: none of them would end."""
    if readers > most:
        raise Violation(15, f"{where} lends to {readers} at a time, and is to lend to {most}")


def full_of_readers(where: str, readers: int, most: int) -> None:
    """15. readers: others whose lease has not ended. Where there is a place whoever asks gets it."""
    if readers < most:
        raise Violation(15, f"{where} has no place, and {readers} of {most} read from it")


def reads_on(where: str, name: str, reason: str, *, lies: bool) -> None:
    """15. Whoever asks in time goes on, whatever the engine serves by now. lies: all that it reads is there."""
    if lies:
        raise Violation(15, f"{where} sends one away that reads {name} ({reason}), and has all of it")


def lends_its_own(where: str, name: str, *, own: bool, again: bool) -> None:
    """15. own: what is lent is what the engine serves, or reads; again: to one that reads it already."""
    if not own and not again:
        raise Violation(15, f"{where} lends {name} to a new reader, and serves and reads another version")
