"""How much may be outstanding: what an end of a piece changes, and what comes of it on links of any speed."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from weightsync_agent.transfer.pace import FAST_SECONDS, SLOW_SECONDS, Mark, Pace
from weightsync_agent.transfer.window import Piece, Window

KIB, MIB = 1 << 10, 1 << 20
MOST, PIECE = 256 * MIB, 64 * MIB
FAST, MIDDLE, SLOW = FAST_SECONDS / 2, (FAST_SECONDS + SLOW_SECONDS) / 2, SLOW_SECONDS * 2


@pytest.mark.parametrize(
    ("begin", "mark", "latency", "expected"),
    [
        pytest.param(4 * MIB, Mark(0, True), FAST, 8 * MIB, id="soon: twice as much"),
        pytest.param(4 * MIB, Mark(0, False), FAST, 4 * MIB, id="soon with little outstanding tells nothing"),
        pytest.param(4 * MIB, Mark(0, True), MIDDLE, 4 * MIB, id="in between: as it is"),
        pytest.param(4 * MIB, Mark(0, True), SLOW, 2 * MIB, id="late: half as much"),
        pytest.param(4 * MIB, Mark(0, False), SLOW, 2 * MIB, id="late with little outstanding: half as much"),
        pytest.param(4 * MIB, Mark(-1, True), SLOW, 4 * MIB, id="late, but from before a change"),
        pytest.param(4 * MIB, Mark(-1, True), FAST, 4 * MIB, id="soon, but from before a change"),
        pytest.param(MOST, Mark(0, True), FAST, MOST, id="never more than the most"),
        pytest.param(256 * KIB, Mark(0, True), SLOW, 256 * KIB, id="never less than the least"),
    ],
)
def test_what_an_end_changes(begin: int, mark: Mark, latency: float, expected: int) -> None:
    """By a factor of two, within bounds; a change begins a round, in which older pieces tell nothing."""
    pace = Pace(MOST, PIECE, begin)
    pace.ended(mark, latency)
    assert pace.allowance == expected
    assert pace.round == (expected != begin)


@pytest.mark.parametrize(
    ("allowance", "piece", "next_time"),
    [
        pytest.param(MIB, 256 * KIB, MIB, id="a new one"),
        pytest.param(MOST, PIECE, 64 * MIB, id="the most"),
        pytest.param(2 * MIB, 512 * KIB, MIB, id="a little more than a new one"),
        pytest.param(256 * KIB, 64 * KIB, 256 * KIB, id="the least is not forgotten"),
    ],
)
def test_pieces_and_the_next_time(allowance: int, piece: int, next_time: int) -> None:
    """Four pieces fill an allowance; what a fast way allowed is begun with in part, a slow way stays slow."""
    pace = Pace(MOST, PIECE, allowance)
    assert pace.piece == piece
    assert pace.rested().allowance == next_time


@dataclass
class Link:
    """bytes/s, shared by sessions; what is outstanding to one goes over ``lanes`` at once, or one after another."""

    rate: float
    sessions: int
    lanes: int
    window: Window = field(default_factory=lambda: Window(64, MOST, PIECE))
    now: float = 0.0
    flying: dict[str, list[list[object]]] = field(default_factory=dict)  # piece, bytes left, since
    ends: dict[str, list[float]] = field(default_factory=dict)
    pieces: list[int] = field(default_factory=list)

    def run(self, nbytes: int, until: float = float("inf")) -> None:
        for number in range(self.sessions):
            self.window.add(f"s{number}", [Piece(number, 0, 0, nbytes)], self.now)
        while self.now < until:
            while found := self.window.next():
                session, piece = found
                self.flying.setdefault(session, []).append([piece, float(piece.nbytes), self.now])
                self.pieces.append(piece.nbytes)
            if not self.step():
                break

    def step(self) -> bool:
        """To the next end of a piece."""
        moving = {s: pieces[: self.lanes] for s, pieces in self.flying.items() if pieces}
        if not moving:
            return False
        each = self.rate / len(moving)
        soonest = min(p[1] * len(pieces) / each for pieces in moving.values() for p in pieces)  # type: ignore[operator]
        self.now += max(soonest, 1e-9)
        for session, pieces in moving.items():
            for one in pieces:
                one[1] -= soonest * each / len(pieces)  # type: ignore[operator]
            for one in [one for one in pieces if one[1] < 1]:  # type: ignore[operator]
                self.flying[session].remove(one)
                self.ends.setdefault(session, []).append(self.now)
                self.window.done(session, one[0], self.now - one[2])  # type: ignore[arg-type, operator]
        return True


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize(
    ("rate", "sessions"),
    [(0.5 * MIB, 1), (4 * MIB, 8), (6 * MIB, 1), (50 * MIB, 8), (50 * MIB, 1), (400 * MIB, 32), (3000 * MIB, 2)],
)
def test_some_piece_ends_every_second(rate: float, sessions: int, lanes: int) -> None:
    """Whatever the link and however many share it; the very first may take two seconds, within the stall timeout."""
    link = Link(rate, sessions, lanes)
    link.run(1 << 50, until=20.0)
    assert len(link.ends) == sessions
    for ends in link.ends.values():
        gaps = [later - sooner for sooner, later in zip([0.0, *ends], [*ends, 20.0], strict=True)]
        begun = next(n for n, end in enumerate(ends) if end >= 2)
        assert max(gaps) <= 2.1
        assert max(gaps[begun + 1 :]) <= 1.1


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_link_that_gets_busier_stalls_nobody(lanes: int) -> None:
    """Fifteen others come to a link that one session had for itself: what is outstanding then still ends in time."""
    link = Link(64 * MIB, 1, lanes)
    link.run(1 << 50, until=10.0)
    link.sessions = 16
    link.run(1 << 50, until=60.0)
    ends = link.ends["s0"]
    assert max(later - sooner for sooner, later in pairwise(ends)) < 5.0


def test_a_fast_link_has_all_of_the_allowance_soon() -> None:
    """Within the bytes of one allowance pieces are as large as they may be: 64 MiB, four outstanding."""
    link = Link(8000 * MIB, 1, 4)
    link.run(2 * MOST)
    grown = link.pieces.index(PIECE)
    assert grown <= 40
    assert sum(link.pieces[:grown]) <= MOST
    assert set(link.pieces[grown:-1]) == {PIECE}
    again = len(link.pieces)
    link.run(2 * MOST)
    assert link.pieces[again:].index(PIECE) <= 20
