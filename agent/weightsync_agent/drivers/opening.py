"""What the first steps need that an engine goes through before writers are let into its memory."""

from collections.abc import Sequence

import structlog

from weightsync.errors import InputError
from weightsync.version import Version
from weightsync.wire.v1 import GrantRequest
from weightsync_agent.drivers.commit_steps import CommitContext
from weightsync_agent.drivers.direct_rank import DirectRank
from weightsync_agent.journal.file import StateFile
from weightsync_agent.journal.records import UNKNOWN, Journal, opened
from weightsync_agent.protocol.fence import OpenGrant
from weightsync_agent.threads import in_thread

log = structlog.get_logger(__name__)


async def opening(
    request: GrantRequest,
    rank: DirectRank,
    grant: OpenGrant,
    *,
    journal: StateFile[Journal],
    life: str,
    others: Sequence[DirectRank],
) -> CommitContext:
    """For a grant that ``rank`` would give. life: the engine's; others: its other ranks, whose writers stay named."""
    version, unreadable = Version(lineage=request.lineage, number=request.number, root=UNKNOWN), None
    try:
        before = await in_thread(journal.read)
    except InputError as error:
        log.warning("the journal cannot be read, and is begun anew", why=str(error))
        before, unreadable = None, version
    torn = opened(
        before,
        life=life,
        ranks=tuple(each.journal_rank() for each in (rank, *others)),
        writers=(*(writer for each in others for writer in each.writers()), *rank.named(grant)),
        unreadable=unreadable,
    )
    return CommitContext(
        version=version,
        label="",
        term=request.term,
        coordinator=request.coordinator,
        incarnation=life,
        pause_mode=request.pause_mode,
        arenas=(),
        ranks=(),
        torn=torn,
    )
