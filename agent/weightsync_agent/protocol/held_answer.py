"""What a coordinator answers engines that join: what was decided last, and who passes on the version of a sync. Pure.

A thousand may ask, each several times in a sync: who passes it on is counted twice a second, and each learns of those
alone that it could turn to (holders.whom).
"""

from weightsync.errors import Refused
from weightsync.wire.v1 import Decided, Held
from weightsync_agent.protocol import relaying
from weightsync_agent.protocol.coordinator import Coordinator, CoordinatorState
from weightsync_agent.protocol.holders import ASKED, Ring, ring, whom

COUNTED_SECONDS = 0.5  # a joiner that is told too late of one that passes it on shares its link: no more than that


class HeldAnswer:
    """Of one coordinator."""

    def __init__(self, machine: Coordinator) -> None:
        self._machine = machine
        self._rings: tuple[Ring, ...] = ()  # of those that pass it on, by tree
        self._of: tuple[str, CoordinatorState] | None = None  # the sync that they were counted in, and its state
        self._until = 0.0

    def held(self, reader: str, now: float) -> Held:
        """For the engine whose leader has that uid. Raises Refused while it is not known here."""
        machine, sync = self._machine, self._machine.sync
        relays = sync is not None and sync.plan.transfer.relay.fanout > 0
        if not machine.knows(now):
            raise Refused("the engines are still asked what was decided; ask again", reason="NotKnown", status=503)
        sealed = machine.sealed
        if sealed is None:
            return Held(uid=machine.uid)
        return Held(
            uid=machine.uid,
            decided=Decided(version=sealed.version, label=sealed.label, term=sealed.term, programs=sealed.roots),
            syncing=sync is not None,
            begins=relays and machine.state is CoordinatorState.GRANTING,
            feeders=self._feeders(reader, now),
        )

    def _feeders(self, reader: str, now: float) -> tuple[str, ...]:
        """Those among the engines that the reader asks, whichever tree it could be of."""
        sync = self._machine.sync
        of = (sync.id, self._machine.state) if sync is not None else None
        if of != self._of or now >= self._until:
            self._rings = tuple(ring(uids) for uids in relaying.feeders(sync)) if sync is not None else ()
            self._of, self._until = of, now + COUNTED_SECONDS
        return tuple(uid for each in self._rings for uid in whom(reader, each, ASKED))
