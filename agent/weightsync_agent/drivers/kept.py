"""Small records that an agent keeps in its volume to find again after a restart, and can do without.

A volume that is full, or a file that is torn, must fail nothing that works: what could not be kept is said in the
log, and kept with the next change.
"""

from typing import Generic, TypeVar

import structlog

from weightsync.errors import InputError
from weightsync.records import Record
from weightsync_agent.journal.file import StateFile

log = structlog.get_logger(__name__)

R = TypeVar("R", bound=Record)


class Kept(Generic[R]):
    """One record in one file. what: for the log; value: as it is now, None before the first."""

    def __init__(self, file: StateFile[R], what: str) -> None:
        self._file = file
        self._what = what
        self.value: R | None = None
        try:
            self.value = file.read()
        except InputError as error:
            log.warning("a kept record cannot be read, and counts as none", what=what, why=str(error))
        self._on_disk = self.value

    def keep(self, value: R) -> None:
        """Written, synced, where it differs from what the disk has: a few bytes, so without a thread."""
        self.value = value
        if value == self._on_disk:
            return
        try:
            self._file.write(value)
        except InputError as error:
            log.warning("a record will not outlive the agent", what=self._what, why=str(error))
            return
        self._on_disk = value
