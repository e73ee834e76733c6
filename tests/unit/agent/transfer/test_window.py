"""The window: pieces cut from buckets, bounded per peer, taken from the peers in turn."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync_agent.transfer.window import MAX_PIECES, REMEMBERED, REST_SECONDS, Piece, Window, parts


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
    window = Window(10, 10**9, size)
    window.add("a", parts(7, buckets), 0.0)
    taken = []
    while found := window.next():
        taken.append(found[1])
    assert [(p.bucket, p.offset, p.nbytes) for p in taken] == expected


def test_pieces_are_as_large_as_the_pace_allows_when_they_are_submitted() -> None:
    """A quarter of what may be outstanding, 1 MiB at first; the next write begins with it, or later with less."""
    window = Window(64, 256 << 20, 64 << 20)
    window.add("a", [Piece(1, 0, 0, 1 << 40)], 0.0)
    sizes = [window.next() for _ in range(5)]
    assert [found and found[1].nbytes for found in sizes] == [256 << 10] * 4 + [None]
    for found in sizes:
        if found is not None:
            window.done(*found, 0.001)
    found = window.next()
    assert found is not None
    assert found[1].nbytes == 512 << 10
    assert found[1].offset == 1 << 20
    window.drop(1)
    window.done(*found)
    for now, size in [(REST_SECONDS, 512 << 10), (3 * REST_SECONDS, 256 << 10)]:
        window.add("a", [Piece(2, 0, 0, 1 << 40)], now)
        again = window.next()
        assert again is not None
        assert again[1].nbytes == size
        window.drop(2)
        window.done(*again)


def test_of_sessions_without_a_write_so_many_are_remembered() -> None:
    """A session with a port of its own for each life of a worker: what is kept of the oldest goes."""
    window = Window(64, 256 << 20, 64 << 20)

    def size(session: str, latency: float) -> int:
        window.add(session, [Piece(1, 0, 0, 1 << 20)], 0.0)
        found = window.next()
        assert found is not None
        window.drop(1)
        window.done(*found, latency)
        return found[1].nbytes

    assert size("slow", 9.0) == 256 << 10
    assert size("slow", 9.0) == 128 << 10
    for number in range(REMEMBERED):
        size(f"other-{number}", 0.2)
    assert size("slow", 0.2) == 256 << 10


def test_peers_take_turns() -> None:
    """A peer with many pieces does not delay another's: they alternate."""
    window = Window(10, 10**9, 10**9)
    window.add("a", pieces(1, 1, 1, 1), 0.0)
    window.add("b", pieces(2, 1, 1), 0.0)
    assert drain(window) == [("a", 1), ("b", 2), ("a", 1), ("b", 2), ("a", 1)]


def test_full_peer_is_passed_over() -> None:
    """A peer that gives nothing back (it is stopped) holds only its own pieces."""
    window = Window(1, 10**9, 10**9)
    window.add("stopped", pieces(1, 1, 1), 0.0)
    window.add("live", pieces(2, 1, 1), 0.0)
    assert drain(window) == [("stopped", 1), ("live", 2)]
    window.done("live", pieces(2, 1)[0])
    assert drain(window) == [("live", 2)]


def test_bytes_are_bounded_too() -> None:
    """The bytes outstanding to a peer stay within the bound; a piece is at most a quarter of it."""
    window = Window(100, 40, 10**9)
    window.add("a", pieces(1, 6, 25, 9, 1), 0.0)
    assert len(drain(window)) == 5  # 6, 10, 10, 5, 9: 40
    window.done("a", pieces(1, 6)[0])
    assert len(drain(window)) == 1


def test_dropped_write_submits_no_more() -> None:
    """drop() forgets what was not submitted of one write, and nothing of another to the same peer."""
    window = Window(1, 10**9, 10**9)
    window.add("a", pieces(1, 1, 1), 0.0)
    window.add("a", pieces(2, 1), 0.0)
    assert drain(window) == [("a", 1)]
    window.drop(1)
    window.done("a", pieces(1, 1)[0])
    assert drain(window) == [("a", 2)]
    assert window.outstanding == 1


def test_never_more_than_mooncake_bears() -> None:
    """A larger bound than 1,000 pieces is cut down: beyond 2,000 a path to a peer can be dead for good."""
    window = Window(5000, 10**9, 10**9)
    window.add("a", pieces(1, *([1] * 3000)), 0.0)
    assert len(drain(window)) == MAX_PIECES


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(1, 200), min_size=1, max_size=8)), max_size=6),
    st.integers(1, 5),
    st.integers(1, 400),
    st.integers(1, 60),
    st.randoms(use_true_random=False),
)
def test_every_byte_is_submitted_once_within_the_bounds(
    writes: list[tuple[str, list[int]]], max_pieces: int, max_bytes: int, piece_bytes: int, random: Random
) -> None:
    """Whatever the order of ends, their latencies, failures and drops: each byte once, in its peer's order."""
    window = Window(max_pieces, max_bytes, piece_bytes)
    whole: dict[tuple[int, int], int] = {}
    for number, (session, sizes) in enumerate(writes):
        window.add(session, pieces(number, *sizes), 0.0)
        whole.update({(number, bucket): size for bucket, size in enumerate(sizes)})
    gone: dict[tuple[int, int], int] = {}  # how much of each bucket was submitted
    dropped: set[int] = set()
    order: dict[str, list[tuple[int, int]]] = {}
    flying: list[tuple[str, Piece]] = []
    while True:
        while found := window.next():
            session, piece = found
            bucket = (piece.write, piece.bucket)
            assert piece.write not in dropped
            assert piece.offset == piece.bucket * 1000 + gone.get(bucket, 0)
            gone[bucket] = gone.get(bucket, 0) + piece.nbytes
            order.setdefault(session, []).append(bucket)
            flying.append(found)
        if not flying:
            break
        for session in {session for session, _ in flying}:
            out = [piece.nbytes for at, piece in flying if at == session]
            assert max(out) <= piece_bytes
            assert len(out) == 1 or (len(out) <= max_pieces and sum(out) <= max_bytes)
        ended = flying.pop(random.randrange(len(flying)))
        if random.random() < 0.05:
            dropped.add(ended[1].write)
            window.drop(ended[1].write)
        window.done(*ended, random.choice([None, 0.001, 0.2, 3.0]))
    assert all(gone[bucket] == size for bucket, size in whole.items() if bucket[0] not in dropped)
    assert all(gone.get(bucket, 0) <= size for bucket, size in whole.items())
    assert all(found == sorted(found) for found in order.values())
    assert window.outstanding == 0
