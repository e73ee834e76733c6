"""What of a pod outlives its processes: journal, decision, arenas. Written whole or, rarely, found torn."""

from __future__ import annotations

from typing import Any

from tools.simulate.memory import ArenaFile
from weightsync.errors import InputError
from weightsync_agent.journal.records import Decision, Journal


class Volume:
    """One pod's."""

    __slots__ = ("arenas", "decision", "journal", "pairing", "replicas", "terms", "torn")

    def __init__(self) -> None:
        self.journal: Journal | None = None
        self.torn = False  # the journal is there and cannot be read
        self.decision: Decision | None = None
        self.pairing: dict[int, tuple[str, int]] = {}  # by rank of a source: nonce, and how far its count is behind
        self.terms: dict[int, tuple[int, str]] = {}  # by source rank (-1: an engine): highest, and whose
        self.arenas: dict[int, list[ArenaFile]] = {}
        self.replicas: dict[int, dict[Any, Any]] = {}  # by rank and arena of a source: (arena, its record or None)

    def read(self) -> Journal | None:
        """As StateFile.read: raises InputError for a torn one."""
        if self.torn:
            raise InputError("journal: is no whole record")
        return self.journal

    def write(self, journal: Journal) -> None:
        """Synced."""
        self.journal, self.torn = journal, False

    def record(self) -> Journal | None:
        """None where it is missing or torn."""
        return None if self.torn else self.journal
