"""Which piece is submitted next, over several peers fairly, with a bound on what is outstanding to each. Pure.

More than about 2,000 pieces outstanding to one peer can break Mooncake's path to it for good, so there is a bound
of pieces; the bound of bytes keeps buckets completing one after another, so that the target checks early ones
while later ones are on the wire.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from weightsync_agent.transfer.runs import Placed, within

MAX_PIECES = 1000


class Piece(NamedTuple):
    """One submit: bytes [offset, offset + nbytes) of the payload, for bucket number ``bucket`` of write ``write``.

    shift: added to where they would lie if the target's payload were in one piece.
    """

    write: int
    bucket: int
    offset: int
    nbytes: int
    shift: int = 0


def cut(write: int, buckets: Iterable[tuple[int, int]], size: int, runs: Sequence[Placed] = ()) -> list[Piece]:
    """Buckets (offset, bytes) in pieces of at most ``size`` bytes, in the buckets' order; of ``runs`` none spans two.

    Without runs the target's payload lies in one piece.
    """
    return [
        Piece(write, number, at, min(size, part.offset + part.nbytes - at), part.address - part.offset)
        for number, (offset, nbytes) in enumerate(buckets)
        for part in (within(runs, offset, nbytes) if runs else [Placed(offset, nbytes, offset)])
        for at in range(part.offset, part.offset + part.nbytes, size)
    ]


class _Peer:
    def __init__(self) -> None:
        self.waiting: deque[Piece] = deque()
        self.pieces = 0
        self.nbytes = 0


class Window:
    """Pieces waiting and outstanding, by session. One is taken by next() and given back by done()."""

    def __init__(self, max_pieces: int, max_bytes: int) -> None:
        self._max_pieces = min(max_pieces, MAX_PIECES)
        self._max_bytes = max_bytes
        self._peers: dict[str, _Peer] = {}
        self._turn: deque[str] = deque()  # sessions, the one to be asked next in front

    def add(self, session: str, pieces: Iterable[Piece]) -> None:
        """Queue pieces behind those that wait for the same session."""
        if session not in self._peers:
            self._peers[session] = _Peer()
            self._turn.append(session)
        self._peers[session].waiting.extend(pieces)

    def next(self) -> tuple[str, Piece] | None:
        """The piece to submit now; it counts as outstanding from here on. None: nothing waits that has room."""
        for _ in range(len(self._turn)):
            session = self._turn[0]
            self._turn.rotate(-1)
            peer = self._peers[session]
            if peer.waiting and self._room(peer):
                piece = peer.waiting.popleft()
                peer.pieces += 1
                peer.nbytes += piece.nbytes
                return session, piece
        return None

    def _room(self, peer: _Peer) -> bool:
        # A piece larger than the bound goes alone, else it would wait for ever.
        fits = peer.nbytes + peer.waiting[0].nbytes <= self._max_bytes
        return peer.pieces == 0 or (peer.pieces < self._max_pieces and fits)

    def done(self, session: str, piece: Piece) -> None:
        """The piece is terminal, or was never accepted. A session with nothing left is forgotten."""
        peer = self._peers[session]
        peer.pieces -= 1
        peer.nbytes -= piece.nbytes
        self._forget(session)

    def drop(self, write: int) -> None:
        """Forget the pieces of one write that were not submitted yet."""
        for session, peer in list(self._peers.items()):
            peer.waiting = deque(piece for piece in peer.waiting if piece.write != write)
            self._forget(session)

    def _forget(self, session: str) -> None:
        peer = self._peers[session]
        if not peer.waiting and peer.pieces == 0:
            del self._peers[session]
            self._turn.remove(session)

    @property
    def outstanding(self) -> int:
        """Pieces outstanding to all peers."""
        return sum(peer.pieces for peer in self._peers.values())
