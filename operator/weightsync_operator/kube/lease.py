"""The Lease: one operator works at a time. Losing it ends the process; the head's resourceVersion fences the rest.

The election is the library's; the lock is ours, over raw JSON: the library's own (kubernetes 37.0) refuses to create
a Lease, and takes an API server that does not answer for the end instead of a missed renewal.
"""

import asyncio
import json
from collections.abc import Coroutine
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import structlog
from kubernetes.aio.client import ApiException
from kubernetes.aio.leaderelection import leaderelection
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.baselock import BaseLock

from weightsync_operator.kube import paths
from weightsync_operator.kube.client import Json, Kube
from weightsync_operator.kube.errors import Forbidden, KubeError, NotFound, Unavailable

log = structlog.get_logger(__name__)

DURATION_SECONDS = 15
RENEW_SECONDS = 10
RETRY_SECONDS = 2
# A try is a look and a renewal. The last one may begin RENEW_SECONDS after one that succeeded, and must end before
# others take the Lease.
CALL_SECONDS = 2.4

Got = tuple[bool, LeaderElectionRecord] | tuple[bool, Exception] | tuple[bool, None]


def spec_of(record: LeaderElectionRecord, transitions: int) -> Json:
    """A Lease's spec. The election counts in local time without a zone, the API in UTC."""
    return {
        "holderIdentity": record.holder_identity,
        "leaseDurationSeconds": int(record.lease_duration or DURATION_SECONDS),
        "acquireTime": _utc(record.acquire_time),
        "renewTime": _utc(record.renew_time),
        "leaseTransitions": transitions,
    }


def record_of(spec: Json) -> LeaderElectionRecord:
    """What the election compares; it takes any change of it for a sign of life."""
    duration = spec.get("leaseDurationSeconds")
    return LeaderElectionRecord(
        spec.get("holderIdentity") or None,
        str(duration) if duration else None,
        spec.get("acquireTime"),
        spec.get("renewTime"),
    )


def _utc(text: str | None) -> str:
    moment = datetime.fromisoformat(text) if text else datetime.now(UTC)
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


async def _soon(call: Coroutine[Any, Any, Json]) -> Json:
    """Its answer. Raises Unavailable where there is none for CALL_SECONDS, and what the call raises."""
    try:
        async with asyncio.timeout(CALL_SECONDS):
            return await call
    except TimeoutError as error:
        raise Unavailable(f"the API server says nothing of the Lease for {CALL_SECONDS} s") from error


class Lock(BaseLock):
    """What the election asks for; a call that fails is a failed try."""

    def __init__(self, kube: Kube, name: str, namespace: str, identity: str) -> None:
        super().__init__(name, namespace, identity)
        self._kube = kube
        self._seen: Json = {}
        self._refused: dict[str, str] = {}  # what the role does not allow, by verb, since it last did

    @property
    def refused(self) -> str:
        """Why this one can never hold the Lease, as far as it has tried; "" while nothing speaks against it."""
        why = next(iter(self._refused.values()), "")
        if not why:
            return ""
        return f"Lease {self.namespace}/{self.name} may not be used: {why}: give the operator's Role back its leases"

    def _told(self, verb: str, error: KubeError | None = None) -> None:
        """How a call ended. What says nothing of rights changes nothing: a server that is away, another's Lease."""
        if error is None:
            self._refused.pop(verb, None)
        elif isinstance(error, Forbidden):
            if not self._refused:
                log.warning("the Lease may not be used", error=str(error))
            self._refused[verb] = str(error)

    async def get(self, name: str, namespace: str) -> Got:
        """The record, or an ApiException of which the election reads status 404 as: create it."""
        try:
            self._seen = await _soon(self._kube.get(paths.lease(namespace, name)))
        except NotFound as error:
            body = json.dumps({"code": HTTPStatus.NOT_FOUND})
            return False, ApiException(status=HTTPStatus.NOT_FOUND, reason=str(error), body=body)
        except KubeError as error:
            self._told("get", error)
            return False, ApiException(status=error.status, reason=str(error))
        self._told("get")
        self._told("create")  # it is there
        return True, record_of(self._seen.get("spec", {}))

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        """False where another was first, or nobody answers."""
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec_of(election_record, 0),
        }
        try:
            self._seen = await _soon(self._kube.create(paths.leases(namespace), body))
        except KubeError as error:
            self._told("create", error)
            return False
        self._told("create")
        return True

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        """Replaces the Lease that get() saw; False where it is another by now."""
        spec = self._seen.get("spec", {})
        changed = spec.get("holderIdentity") != updated_record.holder_identity
        wanted = spec_of(updated_record, spec.get("leaseTransitions", 0) + changed)
        return await self._replace(self._seen | {"spec": wanted})

    async def give_up(self) -> bool:
        """Empty the holder, if it is this one: the next candidate need not wait. False where that failed."""
        found, record = await self.get(self.name, self.namespace)
        if not found or not isinstance(record, LeaderElectionRecord) or record.holder_identity != self.identity:
            return True
        return await self._replace(self._seen | {"spec": self._seen["spec"] | {"holderIdentity": ""}})

    async def _replace(self, body: Json) -> bool:
        try:
            self._seen = await _soon(self._kube.replace(paths.lease(self.namespace, self.name), body))
        except KubeError as error:
            self._told("update", error)
            return False
        self._told("update")
        return True


class Lease:
    """Held from acquire() on; lost() returns when it is not any more."""

    def __init__(self, kube: Kube, name: str, namespace: str, identity: str) -> None:
        self._lock = Lock(kube, name, namespace, identity)
        self._election: asyncio.Task[None] | None = None

    @property
    def refused(self) -> str:
        """Why it can never be held, in a sentence; "" while nothing speaks against it."""
        return self._lock.refused

    async def acquire(self) -> None:
        """Wait for it. Raises Unavailable where the election ends without it."""
        leading = asyncio.Event()

        async def started() -> None:
            leading.set()

        async def stopped() -> None:
            leading.clear()

        config = Config(self._lock, DURATION_SECONDS, RENEW_SECONDS, RETRY_SECONDS, started, stopped)
        self._election = asyncio.create_task(leaderelection.LeaderElection(config).run(), name="lease")
        waiting = asyncio.create_task(leading.wait(), name="lease-leading")
        await asyncio.wait({self._election, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._election.done():
            await self._election
            raise Unavailable(f"the election for Lease {self._lock.namespace}/{self._lock.name} ended")

    async def lost(self) -> None:
        """Wait until it is lost."""
        if self._election is not None:
            await asyncio.shield(self._election)

    async def release(self) -> bool:
        """Stop, and give it up where it is held. False where that failed: then it expires by itself."""
        if self._election is None:
            return True
        self._election.cancel()
        await asyncio.wait({self._election})
        return await self._lock.give_up()
