"""Whether an arena fits into the memory that the agent may use, and what is said of it before there is one."""

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


def room_for_replicas(limit: int | None, arenas: int, stages: int) -> int:
    """Bytes that replicas may take together in a source's pod, one arena of each; 0: nothing limits them.

    arenas: of one replica. stages: an arena counts whole here, whatever its stage fills of it, where whoever plans
    counts a stage's part: so the room is that of a part, and no more replicas are planned than Room lets be made.
    """
    if limit is None:
        return 0
    return max(1, (limit - HEADROOM) // (arenas * stages))  # none at all is not "nothing limits them"


class Room:
    """What all arenas of one agent hold together. limit: bytes; None: there is none."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.held = 0

    def take(self, nbytes: int, what: str) -> None:
        """Count an arena that is to be made. Raises InputError, with nothing counted, where it does not fit."""
        check_room(self.held + nbytes, self.limit, what)
        self.held += nbytes

    def found(self, nbytes: int) -> None:
        """Count an arena whose pages are there already, whether it fits or not."""
        self.held += nbytes

    def give(self, nbytes: int) -> None:
        """An arena is gone."""
        self.held -= nbytes
