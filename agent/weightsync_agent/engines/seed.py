"""An engine that registered its own parameters with Mooncake: what it says of them. Pure.

SGLang does so when it is started with the flag below, and tells it once its server is up: for each tensor-parallel
rank a session, and for each named parameter address, elements and bytes of one. No dtype and no shape: those are
compared by the description of the same process.
"""

from collections.abc import Mapping
from typing import Any

from weightsync.errors import InputError
from weightsync.records import Record

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
