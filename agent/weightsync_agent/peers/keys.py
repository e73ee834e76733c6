"""The cluster's public keys, fetched rarely and kept: tokens are checked without the API server."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import structlog

from weightsync.errors import Refused, WeightSyncError
from weightsync_agent.observability import metrics
from weightsync_agent.peers.tokens import Key, read_keys

log = structlog.get_logger(__name__)

OLD_SECONDS = 3600.0  # after so long the keys are fetched anew, so that a withdrawn one does not live on
PAUSE_SECONDS = 10.0  # between two fetches: tokens with made-up key ids must not become load on the API server
PATIENCE_SECONDS = 1.0  # so long a call with a known key waits for newer ones: an API server that hangs stops nobody


class KeyDocument(NamedTuple):
    """What the API server publishes: the issuer, and the key set as JSON."""

    issuer: str
    keys: dict[str, Any]


class KeyCache:
    """Keys by id. fetch: asks the API server; raises WeightSyncError. clock: seconds that only rise."""

    def __init__(
        self, fetch: Callable[[], Awaitable[KeyDocument]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str, Key] = {}
        self._fetched: float | None = None
        self._tried: float | None = None
        self._problem = ""
        self._fetching: asyncio.Task[None] | None = None
        self._began = 0.0  # of that fetch, in the loop's time

    async def find(self, key_id: str) -> Key:
        """The key of that id. Raises Refused: 401 for one that the cluster does not have, 503 without any keys."""
        known = key_id in self._keys
        if not known or self._older(self._fetched, OLD_SECONDS):
            await self._refresh(PATIENCE_SECONDS if known else None)
        if key_id in self._keys:
            return self._keys[key_id]
        if not self._keys:
            raise Refused(
                f"this agent could not fetch the cluster's keys yet: {self._problem}", reason="NoKeys", status=503
            )
        raise Refused(
            "the token is signed by a key that this cluster does not have", reason="TokenRefused", status=401
        )

    async def _refresh(self, patience: float | None) -> None:
        """One fetch for all who ask meanwhile; whoever has a key waits for it only so long after its begin."""
        loop = asyncio.get_running_loop()
        task = self._fetching
        if task is None or task.done():
            if not self._older(self._tried, PAUSE_SECONDS):
                return
            task = self._fetching = asyncio.create_task(self._fetch_keys())
            self._began = loop.time()
        left = None if patience is None else max(0.0, self._began + patience - loop.time())
        await asyncio.wait({task}, timeout=left)
        if task.done():
            task.result()

    async def _fetch_keys(self) -> None:
        try:
            document = await self._fetch()
            self._keys = read_keys(document.issuer, document.keys)
            self._fetched = self._clock()
        except WeightSyncError as error:
            # The keys that are there stay good: an outage of the API server stops nothing.
            self._problem = str(error)
            metrics.ERRORS.labels(part="keys", reason=error.reason).inc()
            log.warning("the cluster's keys cannot be fetched", problem=self._problem, kept=len(self._keys))
        finally:
            self._tried = self._clock()

    def _older(self, then: float | None, seconds: float) -> bool:
        return then is None or self._clock() - then >= seconds
