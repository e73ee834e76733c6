"""Pods of a large cluster, made through the API, and what agents say in them: by server-side apply, as they do."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Any

import aiohttp

from tools.cluster.light import LightCluster
from weightsync import names
from weightsync.announcement import Announcement, SourceRank, TargetRank
from weightsync.report import Report
from weightsync_operator.planning.grouping.workloads import LWS

Json = dict[str, Any]
NAMESPACE = "scale"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
APPLY = "application/apply-patch+yaml"
AT_ONCE = 16  # requests in flight
PODS_OF_ENGINE = 2  # a rank each
TRAINERS = 8  # a rank each, of one stage
NODES = 100
RETRY_SECONDS = 0.5
DEADLINE_SECONDS = 300.0  # of an API server that is away
# What a pod of an engine carries besides, so that pods have a usual size.
_ENVIRONMENT = [{"name": f"SETTING_{n}", "value": "x" * 40} for n in range(40)]


class Fleet:
    """lives: how often each engine was started; uids: of pods, by name; away: engines that cannot be served now."""

    def __init__(self, cluster: LightCluster) -> None:
        self._cluster = cluster
        self._session: aiohttp.ClientSession | None = None
        self.lives: dict[int, int] = {}
        self.uids: dict[str, str] = {}
        self.away: set[int] = set()

    async def __aenter__(self) -> Fleet:
        context = ssl.create_default_context(cafile=str(self._cluster.authority))
        context.load_cert_chain(self._cluster.admin.certificate, self._cluster.admin.key)
        self._session = aiohttp.ClientSession(
            self._cluster.url,
            connector=aiohttp.TCPConnector(ssl=context, limit=AT_ONCE),
            timeout=aiohttp.ClientTimeout(total=30),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(self, method: str, path: str, body: Json | None = None, content: str = "application/json") -> Json:
        """One request, again while the API server is away. Raises RuntimeError where it refuses."""
        if self._session is None:
            raise RuntimeError("the fleet is not connected")
        end = asyncio.get_running_loop().time() + DEADLINE_SECONDS
        while True:
            try:
                data = None if body is None else json.dumps(body)
                async with self._session.request(
                    method, path, data=data, headers={"Content-Type": content}
                ) as answer:
                    text = await answer.text()
                    if answer.status < HTTPStatus.BAD_REQUEST:
                        found: Json = json.loads(text)
                        return found
                    if answer.status == HTTPStatus.NOT_FOUND and method == "DELETE":
                        return {}  # the first try's answer was lost
                    if answer.status == HTTPStatus.CONFLICT and method == "POST":
                        return await self.call("GET", f"{path}/{(body or {})['metadata']['name']}")
                    away = answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status in (401, 403, 429)
                    if not away or asyncio.get_running_loop().time() > end:
                        raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]}")
            except (aiohttp.ClientError, TimeoutError) as error:
                if asyncio.get_running_loop().time() > end:
                    raise RuntimeError(f"{method} {path}: {error}") from error
            await asyncio.sleep(RETRY_SECONDS)

    async def each(self, work: Callable[[int], Awaitable[None]], numbers: Iterable[int]) -> None:
        """Do ``work`` with every number, AT_ONCE at a time."""
        todo = iter(numbers)

        async def worker() -> None:
            for number in todo:
                await work(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(worker())

    async def bystander(self, number: int) -> None:
        """A pod that concerns nobody."""
        await self._pod(f"other-{number}", "other", {}, {})

    async def trainer(self, number: int) -> None:
        """A trainer pod whose Publisher is connected."""
        name = f"trainer-{number}"
        await self._pod(name, "trainer", {}, {})
        rank = SourceRank(rank=number, world_size=TRAINERS, nonce=f"{number:016x}")
        await self._say(name, Announcement(address=f"10.0.0.{number}:8960", ready=True, sources=(rank,)))

    async def engine(self, number: int) -> None:
        """An engine of several pods that serves; its pods are new ones each time."""
        self.lives[number] = self.lives.get(number, 0) + 1
        for worker in range(PODS_OF_ENGINE):
            await self.make(number, worker)
        for worker in range(PODS_OF_ENGINE):
            await self._say(self.pod(number, worker), Announcement(address="10.1.0.1:8960"))  # no engine yet
            await self.announce(number, worker)

    async def make(self, number: int, worker: int) -> None:
        """One pod of an engine."""
        labels = {
            f"{LWS}/name": "rollout", f"{LWS}/group-index": str(number), f"{LWS}/worker-index": str(worker),
        }  # fmt: skip
        size = {f"{LWS}/size": str(PODS_OF_ENGINE)}
        await self._pod(self.pod(number, worker), "rollout", labels, size, node=f"node-{number % NODES}")

    async def announce(self, number: int, worker: int, *, runs: bool = True) -> None:
        """What its agent says. runs: the engine's process does."""
        digest = f"{worker:032x}"
        said = Announcement(
            address=f"10.1.{number % 250}.{worker}:8960",
            incarnation=f"life-{self.lives[number]}" if runs else "",
            ready=runs,
            targets=(TargetRank(rank=worker, layout=digest, program=digest),),
            engine_ranks=PODS_OF_ENGINE,
        )
        await self._say(self.pod(number, worker), said)

    async def remove(self, number: int, worker: int) -> None:
        """A pod goes."""
        await self.call("DELETE", f"{PODS}/{self.pod(number, worker)}", {"gracePeriodSeconds": 0})

    async def retire(self, number: int) -> None:
        """An engine goes as kubelets end pods: they are terminating, its processes end, and then they are gone."""
        for worker in range(PODS_OF_ENGINE):
            await self.call("DELETE", f"{PODS}/{self.pod(number, worker)}")
        for worker in range(PODS_OF_ENGINE):
            await self.announce(number, worker, runs=False)
        for worker in range(PODS_OF_ENGINE):
            await self.remove(number, worker)
        del self.lives[number]

    async def replace(self, number: int) -> None:
        """An engine's pods go, and others come in their place, under the same names."""
        life = self.lives[number]
        await self.retire(number)
        self.lives[number] = life
        await self.engine(number)

    async def succeed(self, number: int, successor: int) -> None:
        """Another engine comes, under another name, and then this one goes."""
        await self.engine(successor)
        await self.retire(number)

    async def report(self, report: Report) -> None:
        """What the coordinator, the first trainer pod, says of a sync."""
        annotations = {names.REPORT: json.dumps(report.model_dump(mode="json"))}
        await self._apply("trainer-0", annotations, names.MANAGER_REPORT)

    @staticmethod
    def pod(number: int, worker: int) -> str:
        """The name of a pod of an engine."""
        return f"rollout-{number}-{worker}"

    def wanted(self) -> dict[str, tuple[str, ...]]:
        """What a right plan says: by engine its life and the uids of its pods."""
        return {
            f"rollout-{number}": (
                f"life-{life}", *(self.uids[self.pod(number, worker)] for worker in range(PODS_OF_ENGINE)),
            )
            for number, life in self.lives.items() if number not in self.away
        }  # fmt: skip

    async def _pod(
        self, name: str, app: str, labels: dict[str, str], annotations: dict[str, str], node: str = ""
    ) -> None:
        """node: only a pod that has one is terminating for a while before it is gone."""
        spec: Json = {"containers": [{"name": "main", "image": "none", "env": _ENVIRONMENT}]}
        body = {
            "apiVersion": "v1", "kind": "Pod", "spec": spec | ({"nodeName": node} if node else {}),
            "metadata": {"name": name, "labels": {"app": app, **labels}, "annotations": annotations},
        }  # fmt: skip
        made = await self.call("POST", PODS, body)
        self.uids[name] = made["metadata"]["uid"]

    async def _say(self, name: str, said: Announcement) -> None:
        await self._apply(name, {names.ANNOUNCEMENT: said.model_dump_json()}, names.MANAGER_AGENT)

    async def _apply(self, name: str, annotations: dict[str, str], manager: str) -> None:
        body = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"uid": self.uids[name], "annotations": annotations},
        }  # fmt: skip
        await self.call("PATCH", f"{PODS}/{name}/status?fieldManager={manager}&force=true", body, APPLY)
