"""Whether a writer that was let into an engine's memory can still write there: its agent's word, and the kernel's.

Its agent promises to start no write under the grant any more and ends the workers that wrote to the engine; of a pod
that left the plan nobody answers. Over TCP bytes may be on their way either way: it is over only when no connection
from where it ran is left: the engine has then read, or dropped, all that was sent. Over RDMA a process's queue pairs
end with it, and its agent's word is enough; of a pod that left nothing can be seen here, and only a restart of the
engine ends the wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from weightsync.wire.v1 import QuietAnswer, QuietRequest
from weightsync_agent.transfer.connections import connected, current

AskQuiet = Callable[[str, QuietRequest], Awaitable[QuietAnswer]]
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


@dataclass(frozen=True)
class Peer:
    """A writer's agent. address: "" where it is not known; left: its pod is in no plan any more."""

    address: str
    left: bool


class Drain:
    """Of one grant. session: the engine's, as its writers dialled it; port: where bytes come in, 0 over RDMA."""

    def __init__(self, grant: str, session: str, port: int, ask: AskQuiet) -> None:
        self._request = QuietRequest(grant=grant, session=session)
        self._port = port
        self._ask = ask
        self._pause = FIRST_PAUSE

    async def over(self, peer: Peer) -> bool:
        """Raises WeightSyncError where its agent does not answer, OSError where the kernel does not."""
        if not peer.left and (not peer.address or not (await self._ask(peer.address, self._request)).quiet):
            return False
        if not self._port:
            return not peer.left
        host = peer.address.rpartition(":")[0].strip("[]")
        rows = await asyncio.to_thread(current)
        return not connected(rows, self._port, host)

    async def all_over(self, addresses: Mapping[str, str]) -> bool:
        """Of whoever it was: every source's word, and no connection from anywhere. Raises as ``over`` does."""
        said = [await self._ask(address, self._request) for address in addresses.values()]
        if not said or not all(each.quiet for each in said):
            return False
        return not self._port or not connected(await asyncio.to_thread(current), self._port, "")

    def pause(self) -> float:
        """Seconds until it is worth to ask again: longer each time."""
        pause, self._pause = self._pause, min(LONGEST_PAUSE, 1.5 * self._pause)
        return pause
