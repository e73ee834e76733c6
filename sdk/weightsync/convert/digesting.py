"""Digests of buckets taken while they are filled, right behind the copy. No torch.

Bytes that were just copied are still in the core's cache, where xxh3 runs three times as fast as over memory. A
bucket whose bytes arrive in another order, or by strided copies, gets no digest here: the agent then reads it once.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

import xxhash

from weightsync.buckets import Extent
from weightsync.convert.fill import BucketIndex

STEP = 256 * 1024  # bytes copied before they are digested: well inside a core's second-level cache
# With more threads each step's turn at the interpreter costs more than the cache saves: eight threads gained nothing
# over four in small steps. These lie in the cache that the cores share.
STEP_OF_MANY = 4 << 20
MANY = 4  # threads


def step_of(threads: int) -> int:
    """Bytes of a step where so many threads copy at a time."""
    return STEP_OF_MANY if threads >= MANY else STEP


class _Prefix:
    """The digested start of one bucket: [bucket's offset, end)."""

    def __init__(self, start: int) -> None:
        self.total = xxhash.xxh3_128()
        self.end = start


class BucketDigester:
    """Follows the copies of one publish. needed: the payload's extents that any tensor fills, sorted; the rest of a
    bucket is padding, which is zero always and digested as soon as it is reached. Threads may use it at once, each
    for buckets of its own. step: bytes that are copied before they are digested."""

    def __init__(self, index: BucketIndex, needed: Sequence[Extent], view: memoryview, step: int = STEP) -> None:
        self._index = index
        self._starts = [start for start, _ in needed]
        self._ends = [stop for _, stop in needed]
        self._view = view
        self._step = step
        self._prefixes: dict[int, _Prefix] = {}

    def begin(self) -> None:
        """Forget the publish before."""
        self._prefixes.clear()

    def copy(self, start: int, stop: int, move: Callable[[int, int], object]) -> None:
        """Have ``move(start, stop)`` copy bytes [start, stop) of the payload, in one go or in steps, each of them
        digested before the next is copied where some bucket's digest can go on with it.

        In one go, a copy that is large enough goes past the cache, half as fast again as in steps.
        """
        moved = start
        for bucket in self._index.touched((start, stop)):
            at = max(start, self._index.offsets[bucket])
            prefix = self._following(bucket, at)
            if prefix is None:
                continue
            if moved < at:
                move(moved, at)
            moved = min(stop, self._index.ends[bucket])
            self._behind(prefix, at, moved, move)
        if moved < stop:
            move(moved, stop)

    def parts(self, start: int, stop: int) -> list[tuple[int | None, int, int]]:
        """[start, stop) of the payload cut so that each part has to do with one bucket, or with none."""
        found: list[tuple[int | None, int, int]] = []
        at = start
        for bucket in self._index.touched((start, stop)):
            end = min(stop, self._index.ends[bucket])
            found.append((bucket, at, end))
            at = end
        if at < stop:
            found.append((None, at, stop))
        return found

    def take(self, bucket: int | None, start: int, stop: int) -> None:
        """Digest one part that is in the payload by now, where its bucket's digest can go on with it."""
        if bucket is None:
            return
        prefix = self._following(bucket, max(start, self._index.offsets[bucket]))
        if prefix is not None:
            self._take(prefix, stop)

    def _following(self, bucket: int, at: int) -> _Prefix | None:
        """The bucket's digest, if it can go on with bytes from ``at`` on."""
        prefix = self._prefixes.get(bucket)
        if prefix is None:
            prefix = self._prefixes[bucket] = _Prefix(self._index.offsets[bucket])
        if prefix.end < at and self._padding(prefix.end, at):
            self._take(prefix, at)
        return prefix if prefix.end == at else None

    def _behind(self, prefix: _Prefix, start: int, stop: int, move: Callable[[int, int], object]) -> None:
        # Thousands of steps a GiB: nothing is looked up in the loop, which is a tenth of its time if it is.
        update, view, step = prefix.total.update, self._view, self._step
        for at in range(start, stop, step):
            end = min(at + step, stop)
            move(at, end)
            with view[at:end] as moved:
                update(moved)
        prefix.end = stop

    def _take(self, prefix: _Prefix, end: int) -> None:
        with self._view[prefix.end : end] as run:
            prefix.total.update(run)
        prefix.end = end

    def _padding(self, start: int, stop: int) -> bool:
        """No tensor fills a byte of [start, stop)."""
        after = bisect_right(self._ends, start)
        return after == len(self._starts) or self._starts[after] >= stop

    def digest(self, bucket: int) -> str:
        """The full bucket's digest, "" where its bytes did not come in order."""
        prefix, last = self._prefixes.get(bucket), self._index.ends[bucket]
        if prefix is None:
            return ""
        if prefix.end < last and self._padding(prefix.end, last):
            self._take(prefix, last)
        return prefix.total.hexdigest() if prefix.end == last else ""

    def close(self) -> None:
        """Let go of the payload."""
        self._prefixes.clear()
        self._view = memoryview(b"")
