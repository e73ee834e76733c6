"""What engines read from one another, this one's side of it: its joins, its part of a relay, and what it lends.

Who may ask for it, and what a commit or a look needs beside it, is the engine's driver's.
"""

from collections.abc import Callable

from weightsync.errors import Refused
from weightsync.wire.v1 import Decided, Grant, PassAnswer, PassRequest, RelayEnd, RelayOrder
from weightsync_agent.drivers.holding import Holding
from weightsync_agent.drivers.joining import Joining
from weightsync_agent.drivers.ranks import EngineRanks
from weightsync_agent.drivers.relaying import Relaying


class Exchange:
    """One engine's. decided: the newest version that it was told to serve; joining, relaying: None where its agent
    does no such thing.
    """

    def __init__(
        self,
        uid: str,
        ranks: EngineRanks,
        decided: Callable[[], Decided | None],
        *,
        joining: Joining | None,
        relaying: Relaying | None,
    ) -> None:
        self.holding = Holding(uid, ranks, decided, lambda: joining.grows if joining is not None else None)
        self._ranks = ranks
        self._joining = joining
        self._relaying = relaying

    def look(self) -> None:
        """See whether the engine needs a version."""
        if self._joining is not None:
            self._joining.look()

    @property
    def hopes(self) -> bool:
        """The engine gets a version by itself."""
        return self._joining is not None and self._joining.hopes

    def feeds(self, silent_after: float) -> bool:
        """A sync has it read from another engine; see Relaying.feeds()."""
        return self._relaying is not None and self._relaying.feeds(silent_after)

    async def end(self, why: str) -> None:
        """Nothing of ours reads into an arena any more when this returns."""
        if self._joining is not None:
            await self._joining.end(why)
        if self._relaying is not None:
            await self._relaying.end(why)

    def check_grant(self) -> None:
        """Raises Refused while the arenas are needed as they are: what was read into them is taken over."""
        if self._joining is not None and self._joining.applies:
            raise Refused("the engine takes over what it read from another; ask again", reason="Fencing", status=503)

    def told(self, grant: Grant) -> Grant:
        """With what the coordinator must know of it."""
        return grant.model_copy(update={"relays": self._relaying is not None, "lends": self.holding.lends})

    async def relay(self, order: RelayOrder) -> RelayEnd:
        """Read from another engine what it verifies in the same sync. Raises Refused."""
        if self._relaying is None:
            raise Refused("this agent reads from no other engine", reason="NoRelay", status=422)
        return await self._relaying.order(order)

    async def passes(self, request: PassRequest) -> PassAnswer:
        """Another engine reads from here, in a sync. Raises Refused."""
        rank = self._ranks.targets.get(request.rank)
        if rank is None:
            raise Refused(f"rank {request.rank} has no arena here", reason="UnknownRank", status=404)
        answer = await rank.passes(request)
        self.holding.passes(request.reader)
        return answer

    async def close(self) -> None:
        """End what reads."""
        if self._joining is not None:
            await self._joining.close()
        if self._relaying is not None:
            await self._relaying.close()
