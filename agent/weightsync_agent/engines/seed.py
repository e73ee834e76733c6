"""An engine that registered its own parameters with Mooncake: where they lie, and whether all of a layout does. Pure.

SGLang does so when it is started with the flag below, and tells it once its server is up: for each tensor-parallel
rank a session, and for each named parameter address, elements and bytes of one. No dtype and no shape: those are
compared by the description of the same process.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from weightsync.errors import InputError
from weightsync.layout import Layout
from weightsync.records import Record
from weightsync.wire.v1 import Region, Run
from weightsync_agent.transfer.runs import Placed, joined

SEED_FLAG = "--remote-instance-weight-loader-start-seed-via-transfer-engine"
SEED_PATH = "/remote_instance_transfer_engine_info"


class Seed(Record):
    """One rank's parameters. places: by name, address and bytes."""

    rank: int
    session: str
    places: dict[str, tuple[int, int]]


def parse_seed(body: Mapping[str, Any], rank: int) -> Seed:
    """Raises InputError where it is no such table."""
    try:
        session, table = body["remote_instance_transfer_engine_info"]
        places = {str(name): (int(row[0]), int(row[1]) * int(row[2])) for name, row in table.items()}
        return Seed(rank=rank, session=str(session), places=places)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(f"{SEED_PATH}: what it says of rank {rank} is no table of parameters: {error!r}") from error


def region_of(layout: Layout, seed: Seed) -> Region:
    """Where the layout's bytes may be written. Raises InputError that names the first parameter that is not there."""
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
    runs = joined(Placed(row.offset, row.nbytes, at) for at, row in placed)
    return Region(
        session=seed.session,
        address=0,
        nbytes=layout.nbytes,
        runs=tuple(Run(offset=run.offset, nbytes=run.nbytes, address=run.address) for run in runs),
    )
