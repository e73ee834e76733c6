"""The highest term that a source rank or an engine has seen, on disk before a request of it is answered.

An agent that forgot it with a restart would obey a coordinator that has been replaced.
"""

from pathlib import Path
from typing import Annotated

import structlog
from pydantic import Field

from weightsync.errors import InputError
from weightsync.records import Record
from weightsync_agent.journal.file import StateFile
from weightsync_agent.protocol.fence import Fence

log = structlog.get_logger(__name__)


class TermSeen(Record):
    """coordinator: who held it, "" where its orders did not say."""

    term: Annotated[int, Field(ge=0)]
    coordinator: str = ""


class KeptTerm:
    """One file in the volume. name: the source rank's number, or "engine"."""

    def __init__(self, directory: Path, name: str) -> None:
        self._file = StateFile(directory / f"term-{name}", TermSeen)
        self._kept: TermSeen | None = None

    def fence(self) -> Fence:
        """As it was left; a file that cannot be read counts as none, for a fence that is too high obeys nobody."""
        try:
            self._kept = self._file.read()
        except InputError as error:
            log.warning("the last term cannot be read; the next request tells it", why=str(error))
        return Fence(self._kept.term, self._kept.coordinator) if self._kept is not None else Fence()

    def keep(self, fence: Fence) -> None:
        """Write it where it has risen. One fsync with each change of the coordinator."""
        seen = TermSeen(term=fence.term, coordinator=fence.coordinator)
        if seen == (self._kept or TermSeen(term=0)):
            return
        try:
            self._file.write(seen)
        except InputError as error:
            log.warning("the term will not outlive the agent", term=fence.term, why=str(error))
            return
        self._kept = seen
