"""Plans from head and slices: one watch on the namespace's WeightSyncs, slices fetched once each.

Two tasks: one follows the WeightSyncs, the other makes a plan of what is there. The plan of this agent is that of
the WeightSync in whose slices its pod's uid stands as a source. While the API server is away the last one stays.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal

import structlog

from weightsync import names
from weightsync.api.v1alpha1.slice import SliceSpec
from weightsync.errors import InputError, PeerError, Refused, WeightSyncError
from weightsync.plan import Plan
from weightsync_agent import lasting
from weightsync_agent.observability import metrics
from weightsync_agent.own_pod.api import Api
from weightsync_agent.plan_feed.base import Latest, PlanFeed
from weightsync_agent.plan_feed.heads import (
    Json,
    WeightSync,
    by_age,
    gate_allowed,
    owner_of,
    plan_of,
    read_slice,
    read_weightsync,
    retired,
)

log = structlog.get_logger(__name__)

LONGEST_WAIT = 10.0  # seconds between two tries
GONE = 410  # the API server's word for a resource version that is too old
AT_ONCE = 8  # slices fetched at the same time

Labels = Callable[[], Awaitable[dict[str, str]]]


class SlicesFeed(PlanFeed):
    """The plan of the WeightSync that pod ``uid`` of ``namespace`` is a source of. labels: of that pod."""

    def __init__(self, api: Api, namespace: str, uid: str, labels: Labels) -> None:
        self._api = api
        self._namespace = namespace
        self._uid = uid
        self._labels = labels
        self._latest = Latest()
        self._raw: dict[str, Json] = {}  # WeightSyncs by uid
        self._slices: dict[str, SliceSpec] = {}  # by name: immutable, so never fetched twice
        self._dirty = asyncio.Event()
        self._problems: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def current(self) -> Plan | None:
        """The newest plan that could be read."""
        return self._latest.plan

    @property
    def problem(self) -> str:
        """Why the newest plan cannot be read; empty where it could."""
        return "; ".join(self._problems.values())

    async def next(self) -> Plan:
        """The plan, once it has changed; one without coordinator, sources and engines where it names us no more."""
        return await lasting.meanwhile(self._latest.next(), self._tasks)

    async def head(self) -> tuple[int, str] | None:
        """Term and coordinator of the WeightSync that selects this pod, read from the API server now.

        By the pod's labels, not by its uid in the slices: thousands of engines ask when a coordinator changes.
        """
        found, failed = await _weightsyncs(self._api, self._namespace)
        owner = owner_of(found, await self._labels())
        if owner is None and failed is not None:
            raise failed
        head = owner.status.head if owner else None
        return (head.term, head.coordinator) if head else None

    async def plan(self) -> Plan | None:
        """The plan of the WeightSync that selects this pod, read from the API server now; None before its first head.

        Raises WeightSyncError where it cannot be read.
        """
        found, failed = await _weightsyncs(self._api, self._namespace)
        owner = owner_of(found, await self._labels())
        if owner is None and failed is not None:
            raise failed
        if owner is None or owner.status.head is None:
            return None
        plan = plan_of(owner, await self._fetch(owner.status.head.slices))
        self._forget([owner])
        return plan

    async def start(self) -> None:
        """Begin to follow."""
        self._tasks = [lasting.begin("watch on WeightSyncs", self._follow()), lasting.begin("plans", self._build())]

    async def stop(self) -> None:
        """End."""
        await lasting.end(self._tasks)

    async def _follow(self) -> None:
        """List, then watch from there; list again where a watch broke off."""
        version, failures = "", 0
        while True:
            failures += 1  # until an event comes: a watch that ends at once, again and again, is a failure too
            try:
                version = version or await self._list()
                async with self._api.watch(_path(self._namespace, names.PLURAL), version) as events:
                    self._note("watch", None)
                    async for event in events:
                        version, failures = self._take(event), 0
            except PeerError as error:
                # Whatever it was: only a list is sure to be of now. A version may be too old, or, after a restore
                # of the cluster, of a future that never came.
                version = ""
                if not (isinstance(error, Refused) and error.status == GONE):
                    self._note("watch", error)
            await asyncio.sleep(pause_after(failures, random.random()))  # noqa: S311 - spreads the load

    async def _list(self) -> str:
        found = await self._api.get(_path(self._namespace, names.PLURAL))
        self._raw = {item["metadata"]["uid"]: item for item in found["items"]}
        self._dirty.set()
        return str(found["metadata"]["resourceVersion"])

    def _take(self, event: Json) -> str:
        metadata = event["object"]["metadata"]
        if event["type"] == "DELETED":
            self._raw.pop(metadata["uid"], None)
            self._dirty.set()
        elif event["type"] != "BOOKMARK":
            self._raw[metadata["uid"]] = event["object"]
            self._dirty.set()
        return str(metadata["resourceVersion"])

    async def _build(self) -> None:
        failures = 0
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                plan = await self._newest()
            except WeightSyncError as error:
                # A slice may go between the head that named it and its fetch; a newer head is then on its way.
                if failures or not isinstance(error, Refused):
                    self._note("plan", error)
                await self._dirty_within(pause_after(failures, random.random()))  # noqa: S311 - spreads the load
                failures += 1
                continue
            failures = 0
            self._note("plan", None)
            if plan is not None and self._latest.put(plan):
                log.info("a plan", origin=plan.name, term=plan.term, generation=plan.generation, us=self._uid)

    async def _newest(self) -> Plan | None:
        """The plan that names us as a source; None where none ever did. Raises where that cannot be known yet."""
        failed: WeightSyncError | None
        found, failed = _readable(self._raw.values())
        for one in by_age(found):
            if one.status.head is None:
                continue
            try:
                plan = plan_of(one, await self._fetch(one.status.head.slices))
            except WeightSyncError as error:  # another WeightSync's trouble must not keep ours from us
                failed = failed or error
                continue
            if plan.source(self._uid) is not None:
                self._forget(found)
                return plan
        if failed is not None:
            if self.current is not None and not self._holds(self.current.name):
                self._latest.put(retired(self.current))
            raise failed  # what cannot be read may name us
        self._forget(found)
        return self.current and retired(self.current)

    def _holds(self, full_name: str) -> bool:
        return full_name.partition("/")[2] in {raw["metadata"]["name"] for raw in self._raw.values()}

    async def _fetch(self, wanted: tuple[str, ...]) -> list[SliceSpec]:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(name: str) -> None:
            async with limit:
                path = f"{_path(self._namespace, names.SLICE_PLURAL)}/{name}"
                self._slices[name] = read_slice(await self._api.get(path))

        results = await asyncio.gather(
            *(one(name) for name in wanted if name not in self._slices), return_exceptions=True
        )
        for result in results:
            if result is not None:
                raise result
        return [self._slices[name] for name in wanted]

    def _forget(self, found: list[WeightSync]) -> None:
        named = {name for one in found if one.status.head for name in one.status.head.slices}
        self._slices = {name: part for name, part in self._slices.items() if name in named}

    async def _dirty_within(self, seconds: float) -> None:
        """Go on when something changed, or after ``seconds`` all the same."""
        try:
            await asyncio.wait_for(self._dirty.wait(), seconds)
        except TimeoutError:
            self._dirty.set()

    def _note(self, part: str, error: WeightSyncError | None) -> None:
        """Say a problem once, and its end."""
        if error is None:
            if self._problems.pop(part, ""):
                log.info("the plan can be followed again", part=part)
            return
        metrics.ERRORS.labels(part="plan_feed", reason=error.reason).inc()
        if self._problems.get(part) != str(error):
            log.warning("the plan cannot be followed", part=part, problem=str(error), kept=self.current is not None)
        self._problems[part] = str(error)


async def initial_gate_allows(api: Api, namespace: str, labels: dict[str, str]) -> bool:
    """heads.gate_allowed, asked once. Raises PeerError where the API server does not answer."""
    found, failed = await _weightsyncs(api, namespace)
    if failed is not None and owner_of(found, labels) is None:
        raise failed
    return gate_allowed(found, labels)


async def transfer_mode(api: Api, namespace: str, labels: dict[str, str]) -> Literal["Auto", "Staged", "Direct"]:
    """What the WeightSync of an engine pod with these labels says; Auto where there is none yet.

    Raises PeerError where the API server does not answer, InputError where it may be one that cannot be read.
    """
    found, failed = await _weightsyncs(api, namespace)
    owner = owner_of(found, labels)
    if owner is None and failed is not None:
        raise failed
    return owner.spec.transfer.mode if owner is not None else "Auto"


def pause_after(failures: int, luck: float) -> float:
    """Seconds to wait after so many failures in a row before. luck: from 0 to 1."""
    return min(LONGEST_WAIT, 0.2 * (1 << min(failures, 16))) * (0.5 + luck / 2)


async def _weightsyncs(api: Api, namespace: str) -> tuple[list[WeightSync], InputError | None]:
    return _readable((await api.get(_path(namespace, names.PLURAL)))["items"])


def _readable(raw: Iterable[Json]) -> tuple[list[WeightSync], InputError | None]:
    """Those that can be read, and the trouble with one that cannot: it must not keep the others from their pods."""
    found: list[WeightSync] = []
    failed: InputError | None = None
    for one in raw:
        try:
            found.append(read_weightsync(one))
        except InputError as error:
            failed = error
    return found, failed


def _path(namespace: str, plural: str) -> str:
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{plural}"
