"""How many bytes may be outstanding to one peer, how large a piece is: bounded by time, not by bytes alone. Pure.

Mooncake tells only when a whole submit has ended, and several that are outstanding share the way, so that they end
together. On a slow or shared link a bound of bytes alone lets nothing end for longer than a stall timeout, though
bytes flow all the time. So what is outstanding is kept to what the way takes in a fraction of a second: it may grow
while pieces end sooner than that, and shrinks where they take longer.
"""

from dataclasses import dataclass
from typing import NamedTuple

KIB = 1 << 10
START_BYTES = 1 << 20  # within a stall timeout of 5 s also at 0.5 MB/s
LEAST_BYTES = 256 * KIB
SHARE = 4  # pieces that fill the allowance: while one is seen to have ended, the others are on the way
# The gap to the stall timeout of 5 s is for whoever gets busier while much is outstanding: a trainer's link that one
# engine had to itself until now and then shares with fifteen others takes 16 times as long for the same bytes.
FAST_SECONDS = 0.1
SLOW_SECONDS = 0.4


class Mark(NamedTuple):
    """What a piece is given along when it is submitted, for ended(). round: of the allowance.

    full: so much was outstanding with it that its latency tells what the whole allowance takes.
    """

    round: int = -1
    full: bool = False


@dataclass
class Pace:
    """Of one peer. most_bytes, most_piece: how far both may grow."""

    most_bytes: int
    most_piece: int
    allowance: int = 0  # bytes that may be outstanding
    round: int = 0  # counts the changes: a piece from before one says nothing of what came of it

    def __post_init__(self) -> None:
        """A new one begins small."""
        self.allowance = self.allowance or min(START_BYTES, self.most_bytes)

    @property
    def piece(self) -> int:
        """Bytes of one piece, at most."""
        return max(1, min(self.most_piece, self.allowance // SHARE))

    def mark(self, outstanding: int) -> Mark:
        """For a piece that is submitted now. outstanding: bytes, with it."""
        return Mark(self.round, 2 * outstanding >= self.allowance)

    def ended(self, mark: Mark, latency: float) -> None:
        """A piece was done so many seconds after its submit. Changes once a round at most, by a factor of two."""
        if mark.round != self.round:
            return
        if latency < FAST_SECONDS and mark.full:
            changed = min(self.most_bytes, self.allowance * 2)
        elif latency > SLOW_SECONDS:
            changed = max(min(LEAST_BYTES, self.most_bytes), self.allowance // 2)
        else:
            return
        self.round += changed != self.allowance
        self.allowance = changed

    def rested(self) -> "Pace":
        """After a while: what was learnt, but less of it, since others may use the way by now."""
        start = min(START_BYTES, self.allowance)
        return Pace(self.most_bytes, self.most_piece, max(start, self.allowance // 4))
