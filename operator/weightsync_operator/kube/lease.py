"""The Lease: one operator works at a time. Losing it ends the process; the head's resourceVersion fences the rest.

The library's election is used as it is; only its lock is taught that an API server that does not answer is a missed
renewal and not the end.
"""

import asyncio

import aiohttp
from kubernetes.aio.client import ApiException, CoordinationV1Api
from kubernetes.aio.leaderelection import leaderelection
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from weightsync_operator.kube.client import Kube
from weightsync_operator.kube.errors import Unavailable

DURATION_SECONDS = 15
RENEW_SECONDS = 10
RETRY_SECONDS = 2


Got = tuple[bool, LeaderElectionRecord] | tuple[bool, Exception] | tuple[bool, None]


class _Lock(LeaseLock):
    """A LeaseLock for which silence is a failed try."""

    async def get(self, name: str, namespace: str) -> Got:
        try:
            return await super().get(name, namespace)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return False, ApiException(reason=f"the API server does not answer: {error}")

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        try:
            return bool(await super().create(name, namespace, election_record))
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        try:
            return bool(await super().update(name, namespace, updated_record))
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False


class Lease:
    """Held from acquire() on; lost() returns when it is not any more; release() lets the next one start at once."""

    def __init__(self, kube: Kube, name: str, namespace: str, identity: str) -> None:
        self._kube = kube
        self._lock = _Lock(name, namespace, identity, kube.api)
        self._leading = asyncio.Event()
        self._election: asyncio.Task[None] | None = None

    async def acquire(self) -> None:
        """Wait for it. Raises Unavailable where the election ends without it."""

        async def started() -> None:
            self._leading.set()

        async def stopped() -> None:
            self._leading.clear()

        config = Config(self._lock, DURATION_SECONDS, RENEW_SECONDS, RETRY_SECONDS, started, stopped)
        self._election = asyncio.create_task(leaderelection.LeaderElection(config).run(), name="lease")
        leading = asyncio.create_task(self._leading.wait(), name="lease-leading")
        await asyncio.wait({self._election, leading}, return_when=asyncio.FIRST_COMPLETED)
        leading.cancel()
        if not self._leading.is_set():
            await self._election
            raise Unavailable(
                f"the election for Lease {self._lock.namespace}/{self._lock.name} ended without a leader"
            )

    async def lost(self) -> None:
        """Wait until it is lost."""
        if self._election is not None:
            await asyncio.shield(self._election)

    async def release(self) -> None:
        """Give it up, if it is held: an empty holder is taken over without waiting."""
        if self._election is None:
            return
        self._election.cancel()
        await asyncio.wait({self._election})
        found, record = await self._lock.get(self._lock.name, self._lock.namespace)
        lease = self._lock.lease_reference
        ours = isinstance(record, LeaderElectionRecord) and record.holder_identity == self._lock.identity
        if not found or not ours or lease is None or lease.spec is None:
            return
        lease.spec.holder_identity = ""
        api = CoordinationV1Api(self._kube.api)
        try:
            await api.replace_namespaced_lease(self._lock.name, self._lock.namespace, lease)
        except (ApiException, aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"Lease {self._lock.namespace}/{self._lock.name} was not released: {error}") from error
