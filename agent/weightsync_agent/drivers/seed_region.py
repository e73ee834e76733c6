"""Where a layout's bytes lie in an engine that registered its parameters. Pure."""

from collections.abc import Iterable
from itertools import pairwise

from weightsync.errors import InputError
from weightsync.layout import Layout
from weightsync.wire.v1 import Region, Run
from weightsync_agent.engines.seed import Seed
from weightsync_agent.transfer.runs import Placed, confined, joined


def region_of(layout: Layout, seed: Seed, registered: Iterable[tuple[int, int]]) -> Region:
    """Where the layout's bytes may be written. Raises InputError that names the first parameter that is not there.

    registered: (address, bytes) of each region that the engine's session offers; no run reaches from one into
    another.
    """
    where = f"rank {seed.rank}"
    placed = []
    for row in layout.parameters:
        if row.nbytes == 0:
            continue
        if row.name not in seed.places:
            raise InputError(f"{where}: {row.describe()} is in the layout and not among what the engine registered")
        address, nbytes = seed.places[row.name]
        if nbytes != row.nbytes:
            raise InputError(f"{where}: {row.describe()} has {row.nbytes} bytes, {nbytes} of them are registered")
        placed.append((address, row))
    placed.sort(key=lambda each: each[0])
    for (at, row), (above, other) in pairwise(placed):
        if at + row.nbytes > above:
            raise InputError(
                f"{where}: {row.name} and {other.name} share memory: such cannot be written directly, "
                "set transfer.mode to Staged"
            )
    runs, missing = confined(joined(Placed(row.offset, row.nbytes, at) for at, row in placed), registered)
    if missing:
        first, more = missing[0], len(missing) - 1
        raise InputError(
            f"{where}: the engine names {first.nbytes} bytes at {first.address:#x} as parameters, and has not "
            f"registered them with Mooncake{f'; so {more} more parts' if more else ''}"
        )
    return Region(
        session=seed.session,
        address=0,
        nbytes=layout.nbytes,
        runs=tuple(Run(offset=run.offset, nbytes=run.nbytes, address=run.address) for run in runs),
    )
