"""What a stage owns of a layout, and that cut into buckets. Pure.

A shard is a list of extents [start, stop) of the payload. A bucket is a run inside one extent: the unit of
filling, writing and checking.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from weightsync.bounds import Offset, Size
from weightsync.convert.program import CopyProgram
from weightsync.errors import CoverageError
from weightsync.layout import ALIGNMENT
from weightsync.records import Record

PAGE = 4096
MIN_BUCKETS = 16  # a replica has at least so many buckets, so that filling, writing and checking overlap
# And so many where they are large: several threads fill as many at a time, nothing is written before the first of
# them is full, and what lands last is checked while nothing else is left to do. Smaller ones cost more in switching
# than they gain. By the size alone: ranks that hold the same weights must cut them alike.
BUCKETS = 64
LARGE = 32 << 20  # bytes of a bucket
MIN_BUCKET = 64 * 1024  # below this the fixed cost of a write (about 0.1 ms) outweighs the overlap

Extent = tuple[int, int]


class Bucket(Record):
    """Bytes [offset, offset + nbytes) of the payload."""

    offset: Offset
    nbytes: Size


def bucket_size(total: int, limit: int) -> int:
    """Bytes of a bucket for a replica of ``total`` bytes: at most ``limit``, at least MIN_BUCKETS of them, and
    BUCKETS as long as they are LARGE."""
    wanted = max(-(-total // BUCKETS), min(-(-total // MIN_BUCKETS), LARGE))
    size = min(limit, max(wanted, MIN_BUCKET))
    return max(PAGE, size // PAGE * PAGE)


def cut(extents: Sequence[Extent], size: int) -> list[Bucket]:
    """Cut extents into buckets of ``size`` bytes; boundaries lie on multiples of ``size`` of the payload."""
    buckets = []
    for start, stop in extents:
        at = start
        while at < stop:
            end = min(stop, (at // size + 1) * size)
            buckets.append(Bucket(offset=at, nbytes=end - at))
            at = end
    return buckets


def merge(spans: Iterable[Extent], gap: int = ALIGNMENT) -> list[Extent]:
    """Sorted union of spans; gaps under ``gap`` bytes (padding between parameters, always zero) are closed."""
    merged: list[Extent] = []
    for start, stop in sorted(spans):
        if merged and start - merged[-1][1] < gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def shard(program: CopyProgram, names: frozenset[str]) -> list[Extent]:
    """The extents that the tensors ``names`` fill."""
    return merge(span for tensor in program.tensors if tensor.name in names for span in program.spans(tensor))


def needed(program: CopyProgram) -> list[Extent]:
    """The extents that all stages together must fill: every byte that some tensor goes to, no padding."""
    return merge((span for tensor in program.tensors for span in program.spans(tensor)), gap=1)


def first_gap(runs: Iterable[Extent], expected: Sequence[Extent]) -> Extent | None:
    """The first part of ``expected`` (sorted, disjoint) that the runs leave uncovered; None where there is none."""
    union = merge(runs, gap=1)
    at = 0
    for start, stop in expected:
        while at < len(union) and union[at][1] <= start:
            at += 1
        if at == len(union) or union[at][0] > start:
            return start, stop if at == len(union) else min(stop, union[at][0])
        if union[at][1] < stop:
            return union[at][1], stop
    return None


def assign(program: CopyProgram, stages: Mapping[int, frozenset[str]]) -> dict[int, frozenset[str]]:
    """Give each tensor of the program to one stage; a tied tensor, held by several, to the lowest.

    stages: for each pipeline stage the checkpoint names that it publishes. Raises CoverageError that names the
    first tensors that no stage holds, groups that are parted, and parameters whose bytes two stages would write.
    """
    owner: dict[str, int] = {}
    for stage in sorted(stages, reverse=True):
        owner.update(dict.fromkeys(stages[stage], stage))
    needed = [tensor.name for tensor in program.tensors if tensor.pieces or tensor.name in program.loaded]
    missing = [name for name in needed if name not in owner]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise CoverageError(
            f"no trainer stage publishes {', '.join(missing[:3])}{more}, which rank {program.rank} needs: "
            f"stages {sorted(stages)} must together yield every tensor of the checkpoint"
        )
    for group in (*program.together, *(each.tensors for each in program.by_loading)):
        if len({owner[name] for name in group}) > 1:
            raise CoverageError(f"{' and '.join(group)} must be published by the same stage: they load together")
    owned = {s: frozenset(name for name in needed if owner[name] == s) for s in stages}
    _disjoint(program, owned)
    return owned


def _disjoint(program: CopyProgram, owned: Mapping[int, frozenset[str]]) -> None:
    spans = sorted((*extent, stage) for stage, names in owned.items() for extent in shard(program, names))
    for (_, stop, stage), (start, _, other) in pairwise(spans):
        if start < stop:
            name = next(p.name for p in program.layout.parameters if p.offset + p.nbytes > start)
            raise CoverageError(
                f"parameter {name} is fed by stages {stage} and {other}: tensors that fill one parameter "
                "must belong to one stage"
            )
