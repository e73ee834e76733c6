"""Whether an arena fits. Pure."""

from weightsync.errors import InputError
from weightsync.units import format_bytes

HEADROOM = 64 * 2**20  # bytes of the limit that the agent itself needs


def check_room(wanted: int, limit: int | None, what: str) -> None:
    """Raises InputError where ``wanted`` bytes do not fit into the memory limit; None: there is none."""
    if limit is not None and wanted + HEADROOM > limit:
        raise InputError(
            f"{what} needs {format_bytes(wanted)}, and the memory limit is {format_bytes(limit)}: raise the agent "
            f"container's limit to at least {format_bytes(wanted + HEADROOM)}"
        )
