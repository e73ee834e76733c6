"""One engine rank's live parameters, written to with no replica beside them: who may write, what they are. Rules:

- the engine is journalled Torn and paused before a grant is given, and stays so until the version is whole
  (engine_leader.py: OPENING);
- nobody can be killed here to make the region quiet, for the receiver is the engine: a grant replaces an older one
  only once each of the older one's writers has said that its writes are terminal, or has ended and no connection
  from where it ran is left, or the engine's process is another, whose memory nobody was granted;
- a bucket counts as verified only if it was read back out of the parameters and digested after its writer said that
  its write is terminal;
- Whole only after every writer is terminal, the buckets cover the whole shard of every stage without overlap, and
  their root is the one that the coordinator decided;
- an agent that comes back to an engine that was open takes every writer that its journal names for one that writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from weightsync.buckets import Extent
from weightsync_agent.protocol.fence import OpenGrant
from weightsync_agent.protocol.table import Row
from weightsync_agent.protocol.target import Ask, Commit, GiveGrant, Landed, LastReceipt, RefuseAsk, Target


class DirectState(Enum):
    """What the parameters are to writers."""

    CLOSED = "nobody holds a grant: nobody may write"
    OPEN = "writers may write; the engine is paused"
    DRAINING = "the grant is void, and one of its writers may still write: no other is given"
    WHOLE = "the parameters are a version, verified and decided"


@dataclass(frozen=True)
class Gone:
    """These writers have ended, or promised to write no more, and no connection from where they ran is left."""

    grant: str
    writers: tuple[str, ...]


@dataclass(frozen=True)
class NewLife:
    """The engine's process is another: the old session and its addresses are void."""


@dataclass(frozen=True)
class Restored:
    """At start: the journal says that these writers were let in, in the life of the engine that runs."""

    grant: OpenGrant


@dataclass(frozen=True)
class Drain:
    """Action: find out, in the background, whether the writers are still there; then Gone."""

    writers: tuple[str, ...]


class DirectTarget(Target):
    """See the module's rules. All of Target's checks hold here, too."""

    filling: ClassVar[Enum] = DirectState.OPEN
    sealed: ClassVar[Enum] = DirectState.WHOLE
    state: DirectState  # type: ignore[assignment]

    def __init__(self, rank: int, layout: str, program: str, expected: list[Extent]) -> None:
        super().__init__(rank, layout, program, expected)
        self.state = DirectState.CLOSED

    def fresh(self, event: Ask) -> OpenGrant:
        """The grant that this ask would get: its writers must be on disk before it is given."""
        return self._open(event)

    def _grants(self, event: Ask, now: float) -> list[object]:
        self.grant, self.verified, self.version = self._open(event), {}, None
        return [GiveGrant(event.grant)]

    def _void(self, event: Ask, now: float) -> Sequence[object]:
        self.verified, self.version = {}, None
        return self._drain(event, now)

    def _drain(self, event: Ask, now: float) -> Sequence[object]:
        writers = tuple(sorted(self.grant.open)) if self.grant else ()
        why = (
            f"{', '.join(writers)} may still write into the parameters of rank {self.rank}: the engine stays paused "
            "until they have ended, or it was restarted; ask again"
        )
        return [Drain(writers), RefuseAsk(why)]

    def _gone(self, event: Gone, now: float) -> Sequence[object]:
        if self.grant is not None:
            self.grant.open.difference_update(event.writers)
        return self._settle()

    def _ended(self, event: LastReceipt, now: float) -> Sequence[object]:
        self._last(event, now)
        return self._settle()

    def _settle(self) -> Sequence[object]:
        if self.quiet():
            self.grant, self.state = None, DirectState.CLOSED
        return ()

    def _forget_all(self, event: NewLife, now: float) -> Sequence[object]:
        self.grant, self.verified, self.version = None, {}, None
        return ()

    def _whole(self, event: Commit, now: float) -> Sequence[object]:
        self.version = event.request.version
        return ()

    def _restore(self, event: Restored, now: float) -> Sequence[object]:
        self.grant = event.grant
        return ()


_S = DirectState
_GRANT = Row(_S.OPEN, DirectTarget._grants, lambda m, e: m.quiet(), "nobody writes: grant")
_VOID = Row(_S.DRAINING, DirectTarget._void, name="a writer may still write: void its grant, and wait for its end")
_NEW = Row(_S.CLOSED, DirectTarget._forget_all, name="another process: nobody was let in there")
DirectTarget.table = {
    (_S.CLOSED, Ask): (_GRANT,),
    (_S.CLOSED, Restored): (
        Row(_S.DRAINING, DirectTarget._restore, name="writers that an agent before this let in"),
    ),
    (_S.OPEN, Ask): (_GRANT, _VOID),
    (_S.OPEN, Landed): (Row(_S.OPEN, DirectTarget._landed, lambda m, e: m.current(e.grant), "compare digests"),),
    (_S.OPEN, LastReceipt): (
        Row(_S.OPEN, DirectTarget._last, lambda m, e: m.current(e.grant), "a writer is terminal"),
    ),
    (_S.OPEN, Commit): (Row(_S.WHOLE, DirectTarget._whole, name="verified and decided"),),
    (_S.DRAINING, Ask): (Row(_S.DRAINING, DirectTarget._drain, name="not yet"),),
    (_S.DRAINING, LastReceipt): (
        Row(None, DirectTarget._ended, lambda m, e: m.current(e.grant), "a writer is terminal", (_S.CLOSED,)),
    ),
    (_S.DRAINING, Gone): (
        Row(None, DirectTarget._gone, lambda m, e: m.current(e.grant), "writers have ended", (_S.CLOSED,)),
    ),
    (_S.WHOLE, Ask): (_GRANT,),
    (_S.WHOLE, Commit): (Row(_S.WHOLE, name="decided before"),),
    **{(state, NewLife): (_NEW,) for state in _S},
}
