"""The window: pieces cut from buckets, bounded per peer, taken from the peers in turn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync_agent.transfer.window import MAX_PIECES, Piece, Window, cut


def pieces(write: int, *sizes: int) -> list[Piece]:
    """One bucket per size, each in one piece."""
    return [Piece(write, number, number * 1000, size) for number, size in enumerate(sizes)]


def drain(window: Window) -> list[tuple[str, int]]:
    """All that may be submitted now, as (session, write)."""
    taken = []
    while found := window.next():
        taken.append((found[0], found[1].write))
    return taken


@pytest.mark.parametrize(
    ("buckets", "size", "expected"),
    [
        pytest.param([(0, 10)], 10, [(0, 0, 10)], id="a bucket of the piece size is one piece"),
        pytest.param([(0, 10)], 4, [(0, 0, 4), (0, 4, 4), (0, 8, 2)], id="the last piece is the rest"),
        pytest.param([(5, 3), (90, 2)], 64, [(0, 5, 3), (1, 90, 2)], id="a piece never spans two buckets"),
        pytest.param([], 64, [], id="no bucket, no piece"),
    ],
)
def test_cut(buckets: list[tuple[int, int]], size: int, expected: list[tuple[int, int, int]]) -> None:
    """Pieces keep the buckets' order and their offsets in the payload."""
    assert [(p.bucket, p.offset, p.nbytes) for p in cut(7, buckets, size)] == expected


def test_peers_take_turns() -> None:
    """A peer with many pieces does not delay another's: they alternate."""
    window = Window(10, 10**9)
    window.add("a", pieces(1, 1, 1, 1))
    window.add("b", pieces(2, 1, 1))
    assert drain(window) == [("a", 1), ("b", 2), ("a", 1), ("b", 2), ("a", 1)]


def test_full_peer_is_passed_over() -> None:
    """A peer that gives nothing back (it is stopped) holds only its own pieces."""
    window = Window(1, 10**9)
    window.add("stopped", pieces(1, 1, 1))
    window.add("live", pieces(2, 1, 1))
    assert drain(window) == [("stopped", 1), ("live", 2)]
    window.done("live", pieces(2, 1)[0])
    assert drain(window) == [("live", 2)]


def test_bytes_are_bounded_too() -> None:
    """The bytes outstanding to a peer stay within the bound."""
    window = Window(100, 10)
    window.add("a", pieces(1, 6, 4, 1))
    assert len(drain(window)) == 2
    window.done("a", pieces(1, 6)[0])
    assert len(drain(window)) == 1


def test_piece_over_the_bound_goes_alone() -> None:
    """A piece over the bound of bytes goes when nothing is outstanding; it never waits for ever."""
    window = Window(100, 10)
    window.add("a", pieces(1, 4, 25, 4))
    assert len(drain(window)) == 1
    window.done("a", Piece(1, 0, 0, 4))
    assert len(drain(window)) == 1
    window.done("a", Piece(1, 1, 0, 25))
    assert len(drain(window)) == 1


def test_dropped_write_submits_no_more() -> None:
    """drop() forgets what was not submitted of one write, and nothing of another to the same peer."""
    window = Window(1, 10**9)
    window.add("a", pieces(1, 1, 1))
    window.add("a", pieces(2, 1))
    assert drain(window) == [("a", 1)]
    window.drop(1)
    window.done("a", pieces(1, 1)[0])
    assert drain(window) == [("a", 2)]
    assert window.outstanding == 1


def test_never_more_than_mooncake_bears() -> None:
    """A larger bound than 1,000 pieces is cut down: beyond 2,000 a path to a peer can be dead for good."""
    window = Window(5000, 10**9)
    window.add("a", pieces(1, *([1] * 3000)))
    assert len(drain(window)) == MAX_PIECES


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(1, 20), max_size=8)), max_size=6),
    st.integers(1, 5),
    st.integers(1, 40),
    st.randoms(use_true_random=False),
)
def test_every_piece_is_submitted_once_within_the_bounds(
    writes: list[tuple[str, list[int]]], max_pieces: int, max_bytes: int, random: object
) -> None:
    """Whatever the order of ends: each piece goes out once, in its peer's order, never over the bounds."""
    window = Window(max_pieces, max_bytes)
    queued: dict[str, list[Piece]] = {}
    for number, (session, sizes) in enumerate(writes):
        window.add(session, pieces(number, *sizes))
        queued.setdefault(session, []).extend(pieces(number, *sizes))
    seen: dict[str, list[Piece]] = {}
    flying: list[tuple[str, Piece]] = []
    while True:
        while found := window.next():
            seen.setdefault(found[0], []).append(found[1])
            flying.append(found)
        if not flying:
            break
        for session in {session for session, _ in flying}:
            out = [piece.nbytes for at, piece in flying if at == session]
            assert len(out) == 1 or (len(out) <= max_pieces and sum(out) <= max_bytes)
        window.done(*flying.pop(random.randrange(len(flying))))  # type: ignore[attr-defined]
    assert seen == {session: out for session, out in queued.items() if out}
    assert window.outstanding == 0
