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
        self._lock = asyncio.Lock()

    async def find(self, key_id: str) -> Key:
        """The key of that id. Raises Refused: 401 for one that the cluster does not have, 503 without any keys."""
        if key_id not in self._keys or self._older(self._fetched, OLD_SECONDS):
            await self._refresh(key_id)
        if key_id in self._keys:
            return self._keys[key_id]
        if not self._keys:
            raise Refused(
                f"this agent could not fetch the cluster's keys yet: {self._problem}", reason="NoKeys", status=503
            )
        raise Refused(
            "the token is signed by a key that this cluster does not have", reason="TokenRefused", status=401
        )

    async def _refresh(self, key_id: str) -> None:
        async with self._lock:
            # Asked again: while this caller waited for the lock, another may have fetched.
            fresh = key_id in self._keys and not self._older(self._fetched, OLD_SECONDS)
            if fresh or not self._older(self._tried, PAUSE_SECONDS):
                return
            self._tried = self._clock()
            try:
                document = await self._fetch()
                self._keys = read_keys(document.issuer, document.keys)
            except WeightSyncError as error:
                # The keys that are there stay good: an outage of the API server stops nothing.
                self._problem = str(error)
                metrics.ERRORS.labels(part="keys", reason=error.reason).inc()
                log.warning("the cluster's keys cannot be fetched", problem=self._problem, kept=len(self._keys))
                return
            self._fetched = self._clock()

    def _older(self, then: float | None, seconds: float) -> bool:
        return then is None or self._clock() - then >= seconds
