"""Where a write is done: submit, sleep-poll until terminal, report. One thread, in the worker's process.

The rules, each from a measurement:
- every submit is polled until it is terminal, also those of a write that failed or was dropped: before that
  Mooncake still reads the source's bytes;
- a finished id is never polled again, and an id of a refused submit never at all: both crash the process;
- the first submit to a session dials it under a lock that every other submit waits for, so it runs in a thread of
  its own: polling goes on meanwhile, and what was submitted to other peers still ends.

A write may wait long for its turn, since those to one session go one after another: while they make progress, so
does it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weightsync_agent.transfer.codes import Poll, accepted, polled
from weightsync_agent.transfer.frames import Message
from weightsync_agent.transfer.runs import Placed
from weightsync_agent.transfer.window import Piece, Window, parts

HALTED = "halted"
DROPPED = "dropped"
TELL_SECONDS = 0.25  # between two messages that say no more than which writes make progress


class Engine(Protocol):
    """What is used of mooncake.engine.TransferEngine here; both release the GIL."""

    def transfer_submit_write(self, session: str, source: int, target: int, nbytes: int, /) -> int:
        """An id, or 0 where it failed."""

    def transfer_check_status(self, submit: int, /) -> int:
        """0 pending, 1 done, -1 failed, -2 a timeout that ends nothing."""


@dataclass
class Write:
    """One call. source, target: address of offset 0 of the payload at either end. buckets: (offset, bytes).

    runs: where the target's payload lies, if not in one piece; target is 0 then.
    """

    id: int
    session: str
    arena: str
    source: int
    target: int
    buckets: list[tuple[int, int]]
    waiting: int = 0  # bytes not submitted yet
    outstanding: int = 0  # pieces given to Mooncake, or being given
    lost: int = 0  # pieces that Mooncake accepted and then failed: their bytes may still be on the way
    failed: str = ""
    left: list[int] = field(default_factory=list)  # by bucket: bytes that are not done
    runs: Sequence[Placed] = ()

    @property
    def ended(self) -> bool:
        """Nothing of it is in flight, and nothing will be."""
        return self.waiting == 0 and self.outstanding == 0


class Pump:
    """All writes of one worker. emit takes a message for the supervisor and may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        window: Window,
        emit: Callable[[Message], None],
        *,
        poll_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._window = window
        self._emit = emit
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._writes: dict[int, Write] = {}
        self._flying: dict[int, tuple[str, Piece, float]] = {}  # by Mooncake's id; when it was submitted
        self._moved: set[int] = set()  # writes of whose progress nothing was said yet
        self._moving: set[str] = set()  # sessions with such a write that did not fail
        self._said = -TELL_SECONDS  # when it last was
        self._contacted: set[str] = set()
        self._contacting = False

    def start(self) -> None:
        """Start the thread; it ends with the process."""
        threading.Thread(target=self._run, name="pump", daemon=True).start()

    # --- from the pipe's thread ---

    def add(self, write: Write) -> None:
        """Queue a write's pieces."""
        waiting = parts(write.id, write.buckets, write.runs)
        write.left = [0] * len(write.buckets)
        for part in waiting:
            write.left[part.bucket] += part.nbytes
        write.waiting = sum(write.left)
        with self._changed:
            self._writes[write.id] = write
            self._window.add(write.session, waiting, self._clock())
            self._changed.notify()

    def drop(self, number: int) -> None:
        """Submit no more of a write; its end is reported when what was submitted is terminal."""
        with self._changed:
            if number in self._writes:
                self._stop(self._writes[number], DROPPED)
            self._changed.notify()

    def halt(self) -> None:
        """Drop every write: a first contact holds the lock that each submit needs."""
        with self._changed:
            for write in self._writes.values():
                self._stop(write, HALTED)
            self._changed.notify()

    def wait_for_others(self, session: str, seconds: float) -> bool:
        """Until nothing is outstanding but to this session; whether that came about in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(write.session == session or write.outstanding == 0 for write in self._writes.values()),
                seconds,
            )

    def busy(self, arena: str) -> int:
        """Writes from this arena that have not ended: its bytes may still be read."""
        with self._changed:
            return sum(write.arena == arena for write in self._writes.values())

    def _stop(self, write: Write, why: str) -> None:
        self._window.drop(write.id)
        write.waiting = 0
        write.failed = write.failed or why

    # --- the thread ---

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._writes:
                    self._changed.wait()
            self.turn()

    def turn(self) -> None:
        """Submit what has room, sleep once, poll what is outstanding, report what changed."""
        self._submit()
        time.sleep(self._poll_seconds)
        done = self._poll()
        self._report(done)

    def _submit(self) -> None:
        while True:
            with self._changed:
                found = None if self._contacting else self._window.next()
                if found is None:
                    return
                session, piece = found
                write = self._writes[piece.write]
                write.waiting -= piece.nbytes
                write.outstanding += 1
                first = session not in self._contacted
                self._contacting = first
            if first:
                self._emit({"event": "contact", "session": session})
                threading.Thread(
                    target=self._contact, args=(session, piece, write), name="contact", daemon=True
                ).start()
            else:
                self._give(session, piece, write)

    def _contact(self, session: str, piece: Piece, write: Write) -> None:
        taken = self._give(session, piece, write)
        with self._changed:
            if taken:
                self._contacted.add(session)
            self._contacting = False
        self._emit({"event": "contacted", "session": session})

    def _give(self, session: str, piece: Piece, write: Write) -> bool:
        number = self._engine.transfer_submit_write(
            session, write.source + piece.offset, write.target + piece.offset + piece.shift, piece.nbytes
        )
        with self._changed:
            if accepted(number):
                # After the submit: the first one to a session takes as long as its dialling.
                self._flying[number] = (session, piece, self._clock())
                return True
            self._window.done(session, piece)
            write.outstanding -= 1
            self._stop(write, f"Mooncake took no write of {piece.nbytes} bytes at {piece.offset}")
            return False

    def _poll(self) -> dict[int, list[int]]:
        with self._changed:
            flying = list(self._flying)
        outcomes = {number: polled(self._engine.transfer_check_status(number)) for number in flying}
        done: dict[int, list[int]] = {}
        now = self._clock()
        with self._changed:
            for number, outcome in outcomes.items():
                if outcome is not Poll.PENDING:
                    session, piece, since = self._flying.pop(number)
                    self._window.done(session, piece, now - since if outcome is Poll.DONE else None)
                    self._settle(self._writes[piece.write], piece, outcome, done)
            if done:
                self._changed.notify_all()
        return done

    def _settle(self, write: Write, piece: Piece, outcome: Poll, done: dict[int, list[int]]) -> None:
        write.outstanding -= 1
        finished = done.setdefault(write.id, [])
        self._moved.add(write.id)
        if outcome is Poll.FAILED:
            write.lost += 1
            self._stop(write, f"Mooncake failed a write of {piece.nbytes} bytes at {piece.offset}")
            return
        self._moving.add(write.session)
        write.left[piece.bucket] -= piece.nbytes
        if write.left[piece.bucket] == 0:
            finished.append(piece.bucket)

    def _report(self, done: dict[int, list[int]]) -> None:
        """What landed and what ended at once; that a write makes progress now and then."""
        with self._changed:
            ended = [write for write in self._writes.values() if write.ended]
            for write in ended:
                del self._writes[write.id]
        for number, buckets in done.items():
            if buckets:
                self._emit({"event": "landed", "write": number, "done": buckets})
        for write in ended:
            self._emit({"event": "end", "write": write.id, "failed": write.failed, "lost": write.lost})
        self._say_who_moves()

    def _say_who_moves(self) -> None:
        now = self._clock()
        if now < self._said + TELL_SECONDS:
            return
        with self._changed:
            writes = self._writes.values()
            behind = {w.id for w in writes if w.session in self._moving and w.waiting and not w.outstanding}
            moved = sorted(behind | (self._moved & self._writes.keys()))
        self._moved, self._moving = set(), set()
        if moved:
            self._said = now
            self._emit({"event": "progress", "writes": moved})
