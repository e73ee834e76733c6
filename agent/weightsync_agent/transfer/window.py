"""Which piece is submitted next, over several peers fairly, with a bound on what is outstanding to each. Pure.

More than about 2,000 pieces outstanding to one peer can break Mooncake's path to it for good, so there is a bound
of pieces; the bound of bytes, which follows the peer's pace (pace.py), keeps buckets completing one after another, so
that the target checks early ones while later ones are on the wire.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from weightsync_agent.transfer.pace import Mark, Pace
from weightsync_agent.transfer.runs import Placed, within

MAX_PIECES = 1000
REMEMBERED = 1024  # sessions without a write whose pace is kept
REST_SECONDS = 2.0  # from one write to the next: after a longer time others may use the same links


class Piece(NamedTuple):
    """One submit: bytes [offset, offset + nbytes) of the payload, for bucket number ``bucket`` of write ``write``.

    shift: added to where they would lie if the target's payload were in one piece. mark: of its peer's pace.
    """

    write: int
    bucket: int
    offset: int
    nbytes: int
    shift: int = 0
    mark: Mark = Mark()


def parts(write: int, buckets: Iterable[tuple[int, int]], runs: Sequence[Placed] = ()) -> list[Piece]:
    """What of each bucket (offset, bytes) lies in one piece of the target's memory, in the buckets' order.

    Of ``runs`` none spans two; without runs the target's payload lies in one piece.
    """
    return [
        Piece(write, number, part.offset, part.nbytes, part.address - part.offset)
        for number, (offset, nbytes) in enumerate(buckets)
        for part in (within(runs, offset, nbytes) if runs else [Placed(offset, nbytes, offset)])
    ]


class _Peer:
    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.added = 0.0  # when a write was, last
        self.waiting: deque[Piece] = deque()
        self.pieces = 0
        self.nbytes = 0


class Window:
    """Parts waiting and pieces outstanding, by session. A piece is taken by next() and given back by done()."""

    def __init__(self, max_pieces: int, max_bytes: int, piece_bytes: int) -> None:
        self._max_pieces = min(max_pieces, MAX_PIECES)
        self._max_bytes = max_bytes
        self._piece_bytes = piece_bytes
        self._peers: dict[str, _Peer] = {}
        self._turn: deque[str] = deque()  # sessions, the one to be asked next in front
        self._rest: dict[str, tuple[Pace, float]] = {}  # of sessions without a write, and when one was added

    def add(self, session: str, waiting: Iterable[Piece], now: float) -> None:
        """Queue parts behind those that wait for the same session."""
        if session not in self._peers:
            self._peers[session] = _Peer(self._pace(session, now))
            self._turn.append(session)
        self._peers[session].waiting.extend(waiting)
        self._peers[session].added = now

    def _pace(self, session: str, now: float) -> Pace:
        if session not in self._rest:
            return Pace(self._max_bytes, self._piece_bytes)
        pace, added = self._rest.pop(session)
        return pace.rested() if now > added + REST_SECONDS else pace

    def next(self) -> tuple[str, Piece] | None:
        """The piece to submit now; it counts as outstanding from here on. None: nothing waits that has room."""
        for _ in range(len(self._turn)):
            session = self._turn[0]
            self._turn.rotate(-1)
            peer = self._peers[session]
            if peer.waiting and self._room(peer):
                return session, self._cut(peer)
        return None

    def _cut(self, peer: _Peer) -> Piece:
        """The front of the first part: how large pieces are is known only when they are submitted."""
        part, size = peer.waiting.popleft(), peer.pace.piece
        if part.nbytes > size:
            peer.waiting.appendleft(part._replace(offset=part.offset + size, nbytes=part.nbytes - size))
            part = part._replace(nbytes=size)
        peer.pieces += 1
        peer.nbytes += part.nbytes
        return part._replace(mark=peer.pace.mark(peer.nbytes))

    def _room(self, peer: _Peer) -> bool:
        # A piece larger than the bound goes alone, else it would wait for ever.
        fits = peer.nbytes + min(peer.pace.piece, peer.waiting[0].nbytes) <= peer.pace.allowance
        return peer.pieces == 0 or (peer.pieces < self._max_pieces and fits)

    def done(self, session: str, piece: Piece, latency: float | None = None) -> None:
        """The piece is terminal, or was never accepted. latency: if it landed, seconds from its submit to its end.

        Of a session with nothing left only its pace is kept.
        """
        peer = self._peers[session]
        peer.pieces -= 1
        peer.nbytes -= piece.nbytes
        if latency is not None:
            peer.pace.ended(piece.mark, latency)
        self._forget(session)

    def drop(self, write: int) -> None:
        """Forget what was not submitted yet of one write."""
        for session, peer in list(self._peers.items()):
            peer.waiting = deque(piece for piece in peer.waiting if piece.write != write)
            self._forget(session)

    def _forget(self, session: str) -> None:
        peer = self._peers[session]
        if not peer.waiting and peer.pieces == 0:
            del self._peers[session]
            self._turn.remove(session)
            self._rest[session] = (peer.pace, peer.added)
            if len(self._rest) > REMEMBERED:
                del self._rest[next(iter(self._rest))]

    @property
    def outstanding(self) -> int:
        """Pieces outstanding to all peers."""
        return sum(peer.pieces for peer in self._peers.values())
