"""Workers and writes: how bytes really move, and go on moving.

A write is pieces. Each piece lands by itself, later; it reads the source's arena when it is sent, which may be just
before it lands. Once its source's process has died, what is in the sockets still lands. Unregistering stops nothing.
Only the death of the receiving process does. A write can stall, fail with bytes on their way, or be spoiled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Protocol

from tools.simulate.clock import Future, Loop
from tools.simulate.memory import NO_PIECE, RUBBISH, ArenaFile, number_of
from weightsync.digests import BucketDigest
from weightsync.errors import TransferError
from weightsync_agent.transfer.supervisor import STALLED

if TYPE_CHECKING:
    from tools.simulate.ledger import Ledger

WIRE = 0.012  # seconds that a piece takes, at most
END = 0.002  # until the end of a call is told, at most
LATE = 1.2  # and one that the world forgot for a while


class Piece:
    """One submit."""

    __slots__ = ("bucket", "call", "index", "landed", "reads", "session", "step", "writer")

    def __init__(self, call: WriteCall, bucket: int, index: int) -> None:
        self.call = call
        self.bucket = bucket
        self.index = index
        self.session = call.session
        self.writer = call.writer
        self.step = NO_PIECE  # what is on the wire, once it was read
        self.reads = True  # it may still read the source's arena
        self.landed = False


class WriteCall:
    """One call of write(): pieces of some buckets. events: (what, bucket) for the supervisor."""

    __slots__ = (
        "dropped", "ended", "events",
        "failed", "grant", "left", "lost", "open", "session", "source", "waiter", "worker",
        "writer",
    )  # fmt: skip

    def __init__(self, worker: Worker, source: ArenaFile, session: str, grant: str, writer: str) -> None:
        self.worker = worker
        self.source = source
        self.session = session
        self.grant = grant
        self.writer = writer
        self.events: deque[tuple[str, int]] = deque()
        self.waiter: Future | None = None
        self.left: dict[int, int] = {}
        self.open = 0
        self.failed = ""
        self.dropped = ""
        self.lost = 0
        self.ended = False

    def tell(self, what: str, bucket: int = 0) -> None:
        """Something happened."""
        self.events.append((what, bucket))
        if self.waiter is not None:
            waiter, self.waiter = self.waiter, None
            waiter.set()

    def next(self, loop: Loop) -> Future:
        """Done when there is an event."""
        waiter = Future(loop)
        if self.events:
            waiter.set()
        else:
            self.waiter = waiter
        return waiter


class Receives(Protocol):
    """What pieces land in."""

    def put(self, bucket: int, piece: int, step: int) -> None:
        """A piece's bytes come in."""


class Worker:
    """A transfer worker's process: it receives into one arena (a target's), or sends from several (a source's)."""

    __slots__ = ("alive", "arenas", "calls", "dead", "met", "stuck_until", "wires")

    def __init__(self, wires: Wires, name: str, arenas: Sequence[Receives]) -> None:
        self.wires = wires
        self.arenas = {f"{name}.{index}": arena for index, arena in enumerate(arenas)}  # by session
        self.alive = True
        self.dead = Future(wires.loop)
        self.calls: list[WriteCall] = []
        self.met: set[str] = set()  # sessions that it has written to
        self.stuck_until = 0.0  # it is held in a first contact: no submit is taken

    def kill(self) -> None:
        """SIGKILL: what it was to receive lands nowhere; what it has sent still lands."""
        if not self.alive:
            return
        self.alive = False
        for call in self.calls:
            self.wires.orphan(call)
            if not call.ended:
                call.ended = True
                call.tell("dead")
        self.calls = []
        for session in self.arenas:
            self.wires.sessions.pop(session, None)
        self.dead.set()


class Wires:
    """All writes of the world."""

    def __init__(self, loop: Loop, rng: Random, ledger: Ledger, pieces: int) -> None:
        self.loop = loop
        self.rng = rng
        self.ledger = ledger
        self.pieces = pieces
        self.sessions: dict[str, Worker] = {}
        self.count = 0
        self.flying: dict[str, list[Piece]] = {}  # by session: may still land
        self.stalls: dict[str, float] = {}  # session, or "*": nothing lands before
        self.corrupt = 0  # so many pieces are spoiled on the way
        self.fail = 0  # so many fail, and land all the same
        self.late = 0.0  # chance of a piece that takes LATE
        self.end_seconds = END
        self.held: dict[str, float] = {}  # session: a first contact with it lasts until then

    def worker(self, arenas: Sequence[Receives]) -> Worker:
        """A new process; its sessions (one for each arena that it may receive into) were never there before."""
        self.count += 1
        worker = Worker(self, f"w{self.count}", arenas)
        self.sessions.update(dict.fromkeys(worker.arenas, worker))
        return worker

    def write(self, call: WriteCall, each: BucketDigest) -> WriteCall:
        """Submit all pieces of a bucket."""
        worker = call.worker
        worker.calls.append(call)
        until = self.held.get(call.session, 0.0)
        if until > self.loop.now and call.session not in worker.met:
            worker.stuck_until = until
            for other in list(worker.calls):
                if other is not call:
                    self.drop(other, "WorkerStuck")
        worker.met.add(call.session)
        bucket = number_of(each.offset)
        call.left[bucket] = self.pieces
        for index in range(self.pieces):
            self._submit(Piece(call, bucket, index))
        return call

    def _submit(self, piece: Piece) -> None:
        rng, call = self.rng, piece.call
        call.open += 1
        call.source.outstanding[piece.bucket] += 1
        self.flying.setdefault(piece.session, []).append(piece)
        if rng.random() < 0.5:
            piece.step = call.source.content[piece.bucket][piece.index]  # read at once, as into a socket
        delay = 0.001 + rng.random() * WIRE
        if self.late and rng.random() < self.late:
            delay = rng.random() * LATE
        if self.fail:
            self.fail -= 1
            self.loop.at(delay, self._fail, piece)
            delay += rng.random() * LATE
        self.loop.at(delay, self._land, piece)

    def _land(self, piece: Piece) -> bool:
        if piece.landed:
            return False
        until = max(self.stalls.get(piece.session, 0.0), self.held.get(piece.session, 0.0))
        if until > self.loop.now:
            self.loop.at(until - self.loop.now + self.rng.random() * WIRE, self._land, piece)
            return True
        piece.landed = True
        self._read(piece)
        receiver = self.sessions.get(piece.session)
        flying = self.flying.get(piece.session)
        if flying is not None:
            flying.remove(piece)
        if receiver is None:
            self._terminal(piece, failed="the peer is gone")
            return True
        step = piece.step
        if self.corrupt:
            self.corrupt -= 1
            step = RUBBISH
        self.loop.note(piece.writer, "lands", (piece.session, piece.bucket, step))
        self.ledger.lands(piece)
        receiver.arenas[piece.session].put(piece.bucket, piece.index, step)
        self._terminal(piece)
        return True

    def _read(self, piece: Piece) -> None:
        """From here on the source's arena may change."""
        if piece.step == NO_PIECE:
            piece.step = piece.call.source.content[piece.bucket][piece.index]

    def _fail(self, piece: Piece) -> bool:
        """Mooncake says -1: no byte is read any more, some are still on their way."""
        if piece.landed or not piece.reads:
            return False
        self._read(piece)
        piece.call.lost += 1
        self._terminal(piece, failed="Mooncake failed a write")
        return True

    def _terminal(self, piece: Piece, failed: str = "") -> None:
        if not piece.reads:
            return
        piece.reads = False
        call = piece.call
        call.source.outstanding[piece.bucket] -= 1
        call.open -= 1
        if call.ended:
            return
        if failed:
            call.lost += 1 if failed == "the peer is gone" else 0
            call.failed = call.failed or failed
        else:
            call.left[piece.bucket] -= 1
            if call.left[piece.bucket] == 0:
                call.tell("done", piece.bucket)
        if call.open == 0:
            self.loop.at(self.rng.random() * self.end_seconds, self._ended, call)

    @staticmethod
    def _ended(call: WriteCall) -> bool:
        """The worker says that the call is over, a moment after its last piece."""
        if call.ended or call.open:
            return False
        call.ended = True
        if call in call.worker.calls:
            call.worker.calls.remove(call)
        call.tell("end")
        return True

    def drop(self, call: WriteCall, why: str) -> None:
        """Submit no more of it: what waited in the window ends undone; its end comes when the rest is terminal."""
        call.dropped = call.dropped or why
        for piece in list(self.flying.get(call.session, ())):
            if piece.call is call and piece.reads and piece.step == NO_PIECE:
                piece.landed = True
                self.flying[call.session].remove(piece)
                self._terminal(piece, failed=why)

    def orphan(self, call: WriteCall) -> None:
        """The sending process died: nothing reads its arena any more; what was sent lands, the rest never."""
        for piece in self.flying.get(call.session, ()):
            if piece.call is call and piece.reads:
                piece.reads = False
                call.source.outstanding[piece.bucket] -= 1
                call.open -= 1
                if piece.step == NO_PIECE:
                    if self.rng.random() < 0.5:
                        self._read(piece)
                    else:
                        piece.landed = True
        flying = self.flying.get(call.session)
        if flying:
            self.flying[call.session] = [p for p in flying if not p.landed]

    def gone(self, session: str) -> bool:
        """Whether the peer's process is known to have ended."""
        return session not in self.sessions and self.rng.random() < 0.9

    def failure(self, call: WriteCall, what: str) -> TransferError | None:
        """As the supervisor judges an event."""
        if what == "dead":
            return TransferError("the worker ended", reason="WorkerDied", quiet=self.gone(call.session))
        if what == "end" and call.failed:
            quiet = call.lost == 0 or self.gone(call.session)
            reason = call.dropped if call.failed == call.dropped else "TransferFailed"
            return TransferError(f"a write to {call.session} failed: {call.failed}", reason=reason, quiet=quiet)
        return None

    @staticmethod
    def stalled(call: WriteCall) -> TransferError:
        """Nothing of the call ended for a stall timeout."""
        return TransferError(f"nothing of a write to {call.session} ended", reason=STALLED)
