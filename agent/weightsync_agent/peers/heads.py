"""Whether a coordinator that this engine does not know yet is the one that the head names. No API call per request.

A token proves which pod calls; only the WeightSync's head says whom the operator made coordinator, and in which
term. A coordinator that is known goes on without a look: an outage of the API server stops no sync that runs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from weightsync.errors import Refused, WeightSyncError
from weightsync_agent.observability import metrics

log = structlog.get_logger(__name__)

Head = tuple[int, str] | None  # term and coordinator's uid
PAUSE_SECONDS = 1.0  # between two looks: whoever claims terms at random must not become load on the API server
READ_SECONDS = 3.0  # for one look: whoever asks waits five


class Heads:
    """read: term and coordinator now; None where nothing names this engine. obeyed: the highest term yet, and whose.

    Without ``read`` (a plan file) everybody whom the secret lets in is believed.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[Head]] | None,
        obeyed: Callable[[], tuple[int, str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._obeyed = obeyed
        self._clock = clock
        self._head: Head = None
        self._looked: float | None = None
        self._lock = asyncio.Lock()

    async def check(self, term: int, coordinator: str) -> None:
        """Raises Refused: 403 for whom the head does not name, 503 where it cannot be read.

        An older term passes: the fence refuses it, with the name of who holds the newer one.
        """
        if self._read is None or self._known(term, coordinator):
            return
        asked = self._clock()
        async with self._lock:
            if self._known(term, coordinator) or self._names(term, coordinator):
                return
            if self._looked is None or self._looked <= asked:  # nobody has looked since this request came
                await self._look()
        if self._names(term, coordinator):
            return
        named = f"the head names {self._head[1]} for term {self._head[0]}" if self._head else "no head names this pod"
        raise Refused(
            f"{coordinator[:128]} does not coordinate in term {term}: {named}", reason="NotCoordinator", status=403
        )

    def _known(self, term: int, coordinator: str) -> bool:
        highest, whose = self._obeyed()
        return term < highest or (term, coordinator) == (highest, whose)

    def _names(self, term: int, coordinator: str) -> bool:
        return self._head == (term, coordinator)

    async def _look(self) -> None:
        if self._read is None:
            return
        if self._looked is not None:
            await asyncio.sleep(max(0.0, self._looked + PAUSE_SECONDS - self._clock()))
        self._head = None
        try:
            async with asyncio.timeout(READ_SECONDS):
                self._head = await self._read()
        except (WeightSyncError, TimeoutError) as error:
            reason = error.reason if isinstance(error, WeightSyncError) else "DeadlineExceeded"
            metrics.ERRORS.labels(part="heads", reason=reason).inc()
            log.warning("the head cannot be read: no new coordinator is obeyed", problem=str(error) or reason)
            raise Refused(
                "this agent cannot read the head now, so it obeys no new coordinator",
                reason="HeadUnknown",
                status=503,
            ) from error
        finally:
            self._looked = self._clock()
