"""Wires, starts, stops: the only place that knows all parts. A part that ends unasked ends the process."""

import asyncio
import contextlib
import math
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

import kopf
import structlog

from weightsync import names
from weightsync.errors import WeightSyncError
from weightsync_operator import cycles, handlers, health
from weightsync_operator.feed import Feed
from weightsync_operator.kube import paths
from weightsync_operator.kube.client import Kube
from weightsync_operator.kube.errors import Conflict, Forbidden, KubeError, NotFound, Unavailable
from weightsync_operator.kube.lease import Lease
from weightsync_operator.metrics import Metrics
from weightsync_operator.observe import Seen
from weightsync_operator.reconcile import Reconciler
from weightsync_operator.settings import Settings
from weightsync_operator.store import Store
from weightsync_operator.tasks import Tasks, retry_delay

log = structlog.get_logger(__name__)

START_RETRY_SECONDS = 2.0
GATHER_SECONDS = 1.0  # an API server that restarts ends the watches on all kinds
STANDING_BY = "standing by for the Lease"
STUCK_SECONDS = 300.0  # a pass is a few calls of at most 30 s each


class App:
    """One operator process."""

    def __init__(self, settings: Settings, kube: Kube) -> None:
        self._settings = settings
        self._kube = kube
        self._metrics = Metrics()
        self._store = Store()
        self._reconciler = Reconciler(kube, self._store, self._metrics, lambda: datetime.now(UTC), settings.identity)
        self._tasks = Tasks(self._reconciler.run, self._failed, settings.debounce_seconds)
        self._again = asyncio.Event()
        self._feed = Feed(
            self._store,
            self._tasks.wake,
            self._gone,
            settings.topology_labels,
            missed=self._missed,
            spaced=bool(settings.namespaces),
        )
        self._lease: Lease | None = None
        if settings.leader_election:
            self._lease = Lease(kube, settings.lease_name, settings.lease_namespace, settings.identity)
        self._stage = "starting"
        for kind, shelf in (("Pod", self._store.pods), ("WeightSync", self._store.syncs)):
            self._metrics.seen.labels(kind).set_function(shelf.__len__)
        self._metrics.closed.set_function(lambda: len(self._store.closed))
        for error in (Conflict, Forbidden, Unavailable):
            self._metrics.errors.labels(error.reason)  # at 0: a series that begins with its first event hides it

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set. Raises what ended a part; Unavailable where the Lease was lost."""
        cycles.look_seldom()
        served = health.application(self._healthy, self._ready, self._metrics)
        runner, port = await health.serve(served, self._settings.health_host, self._settings.health_port)
        log.info("serving health and metrics", port=port)
        try:
            await _until(stop, self._work(stop))
        finally:
            await self._tasks.close()
            if self._lease is not None and not await self._lease.release():
                log.warning("the Lease was not released: the next operator waits until it expires")
            await runner.cleanup()

    async def _work(self, stop: asyncio.Event) -> None:
        await self._crds()
        if self._lease is not None:
            self._stage = STANDING_BY
            await self._lease.acquire()
            log.info("leading", lease=self._settings.lease_name, identity=self._settings.identity)
        self._metrics.leading.set(1)
        self._stage = "listing"
        parts: list[Coroutine[Any, Any, None]] = [self._kopf(stop), self._resync(), self._tasks.broken()]
        if self._lease is not None:
            parts.append(self._lease.lost())
        await _first(parts)
        if not stop.is_set():
            raise Unavailable("the Lease was lost: another operator may be working")

    async def _crds(self) -> None:
        """kopf looks for kinds once: wait until both are served. One that comes later would never be watched."""
        while True:
            try:
                served = {kind["name"] for kind in (await self._kube.get(paths.group()))["resources"]}
                if {names.PLURAL, names.SLICE_PLURAL} <= served:
                    return
                self._wait_for_crds()
            except NotFound:
                self._wait_for_crds()
            except KubeError as error:
                self._stage = f"waiting for the API server: {error}"
                log.warning("the API server cannot be used yet", error=str(error))
            await asyncio.sleep(START_RETRY_SECONDS)

    def _wait_for_crds(self) -> None:
        self._stage = "waiting for the CRDs: install them"
        log.warning("the CRDs are not installed yet")

    async def _kopf(self, stop: asyncio.Event) -> None:
        await kopf.operator(
            registry=handlers.register(self._feed, self._kube, nodes=bool(self._settings.topology_labels)),
            settings=handlers.kopf_settings(self._settings),
            # Else kopf asks for the user's name, which a user of a number alone, as in our image, does not have.
            identity=self._settings.identity,  # type: ignore[arg-type]  # a NewType of str that kopf does not export
            standalone=True,
            clusterwide=not self._settings.namespaces,
            namespaces=self._settings.namespaces,
            stop_flag=stop,
        )
        # kopf takes the signals over, and ends without an error only because of one, or of the flag.
        stop.set()

    async def _resync(self) -> None:
        failures = 0
        while True:
            self._again.clear()
            try:
                closed = await self._feed.resync(self._kube, self._settings.namespaces, self._settings.pod_selector)
                for namespace, error in closed.items():
                    self._metrics.errors.labels(error.reason).inc()
                    log.warning(
                        "nothing is planned in a namespace that may not be listed",
                        namespace=namespace,
                        error=str(error),
                    )
                if self._stage != "working":
                    cycles.settle()
                self._stage = "working"
                failures = 0
            except KubeError as error:
                failures += 1
                self._metrics.errors.labels(error.reason).inc()
                log.warning("listing failed", error=str(error))
                if self._stage != "working":
                    self._stage = f"listing: {error}"
            # A list of all pods is no small thing to ask of a server that can hardly answer.
            delay = min(retry_delay(failures) or math.inf, self._settings.resync_seconds)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._again.wait(), delay)
                await asyncio.sleep(GATHER_SECONDS)

    def _missed(self, kind: str) -> None:
        log.info("listing everything anew: a watch began anew, and what vanished before that nobody told", kind=kind)
        self._again.set()

    def _failed(self, uid: str, error: WeightSyncError) -> None:
        self._metrics.passes.labels("failed").inc()
        self._metrics.errors.labels(error.reason).inc()
        seen = self._store.sync(uid)
        log.warning("pass failed", weightsync=seen.key if seen else uid, reason=error.reason, error=str(error))

    def _gone(self, seen: Seen) -> None:
        self._tasks.forget(seen.uid)
        self._reconciler.forget(seen)

    def _healthy(self) -> str:
        age = asyncio.get_running_loop().time() - self._tasks.oldest_pass()
        return f"a pass has been running for {age:.0f} s" if age > STUCK_SECONDS else ""

    def _ready(self) -> str:
        if self._stage == STANDING_BY and self._lease is not None:
            # Ready, unless it could never lead: a rolling update waits for the new pod before it ends the leader.
            return self._lease.refused
        return "" if self._stage == "working" else self._stage


async def _first(parts: list[Coroutine[Any, Any, None]]) -> None:
    """Run all until one ends; raise what it raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            # kopf cancels what was begun after it before it says why it ends: that is still to come then.
            ended = [task for task in done if not task.cancelled()]
            for task in ended:
                task.result()
            if ended:
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until it ends or ``stop`` is set."""

    async def stopped() -> None:
        await stop.wait()

    await _first([work, stopped()])
