"""Digests behind the copy: every byte is moved once, and in steps only where a digest goes on with it."""

import pytest

from weightsync.buckets import Bucket, Extent
from weightsync.convert.digesting import BucketDigester
from weightsync.convert.fill import BucketIndex
from weightsync.digests import digest_bytes

SOURCE = bytes(range(1, 101))
BUCKETS = [Bucket(offset=0, nbytes=40), Bucket(offset=40, nbytes=30), Bucket(offset=80, nbytes=20)]  # a gap before 80
WHOLE: list[Extent] = [(0, 100)]


class Copies:
    """A payload of 100 bytes and the copies into it, each as [start, stop)."""

    def __init__(self, needed: list[Extent]) -> None:
        self.payload = bytearray(100)
        self.moves: list[Extent] = []
        self.digester = BucketDigester(BucketIndex(BUCKETS), needed, memoryview(self.payload), step=16)

    def copy(self, start: int, stop: int) -> list[Extent]:
        """The moves of one copy."""
        self.moves = []
        self.digester.copy(start, stop, self._move)
        return self.moves

    def _move(self, start: int, stop: int) -> None:
        self.payload[start:stop] = SOURCE[start:stop]
        self.moves.append((start, stop))

    def digests(self) -> list[bool]:
        """Which buckets have one; it is that of the bytes."""
        found = [self.digester.digest(number) for number in range(len(BUCKETS))]
        for bucket, digest in zip(BUCKETS, found, strict=True):
            end = bucket.offset + bucket.nbytes
            assert digest in ("", digest_bytes(bytes(self.payload[bucket.offset : end])))
        return [bool(digest) for digest in found]


@pytest.mark.parametrize(
    ("spans", "moves", "digested"),
    [
        pytest.param(
            [(0, 100)],
            [[(0, 16), (16, 32), (32, 40), (40, 56), (56, 70), (70, 80), (80, 96), (96, 100)]],
            [True, True, True],
            id="one copy over all buckets and the gap between them",
        ),
        pytest.param([(72, 78)], [[(72, 78)]], [False, False, False], id="a copy that no bucket has a part of"),
        pytest.param(
            [(0, 20), (20, 40)],
            [[(0, 16), (16, 20)], [(20, 36), (36, 40)]],
            [True, False, False],
            id="two copies after one another",
        ),
        pytest.param(
            [(20, 40), (0, 20)],
            [[(20, 40)], [(0, 16), (16, 20)]],
            [False, False, False],
            id="two copies in the other order: the first in one go",
        ),
        pytest.param(
            [(20, 60)],
            [[(20, 40), (40, 56), (56, 60)]],
            [False, False, False],
            id="the end of one bucket in one go, the start of the next in steps",
        ),
        pytest.param(
            [(60, 90)], [[(60, 80), (80, 90)]], [False, False, False], id="a gap goes with what comes before it"
        ),
    ],
)
def test_bytes_are_moved_once_and_digested_in_order(
    spans: list[Extent], moves: list[list[Extent]], digested: list[bool]
) -> None:
    """In steps where a digest goes on, else in one go."""
    copies = Copies(WHOLE)
    assert [copies.copy(*span) for span in spans] == moves
    assert copies.digests() == digested
    for start, stop in spans:
        assert copies.payload[start:stop] == SOURCE[start:stop]


def test_padding_before_within_and_after_a_bucket_is_digested_with_it() -> None:
    """Nothing fills it, so that it is zero always."""
    copies = Copies([(4, 10), (20, 36), (40, 70)])
    for span in ((4, 10), (20, 36), (40, 70)):
        copies.copy(*span)
    assert copies.digests() == [True, True, False]


def test_the_next_publish_begins_anew() -> None:
    """Half a bucket that was digested before does not count."""
    copies = Copies(WHOLE)
    copies.copy(0, 20)
    copies.digester.begin()
    copies.copy(20, 40)
    assert copies.digests()[0] is False
