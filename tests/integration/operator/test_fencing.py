"""Two operators on one API server: one that lost its Lease in the middle of a pass, or died there, harms no plan."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes.aio import client

from tests.integration.operator.conftest import Place
from tools.cluster.light import LightCluster
from weightsync_operator.feed import Feed
from weightsync_operator.kube.client import Json, Kube
from weightsync_operator.kube.errors import Conflict
from weightsync_operator.metrics import Metrics
from weightsync_operator.reconcile import Reconciler
from weightsync_operator.store import Store

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]


class Held:
    """A connection whose writes can be held back, and are counted."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.writes: list[str] = []
        self.hold: str = ""  # the method whose next calls wait
        self.waiting = asyncio.Event()
        self.release = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._kube, name)
        if name not in ("create", "apply", "delete"):
            return method

        async def call(path: str, *rest: Any) -> Json:
            if name == self.hold:
                self.waiting.set()
                await self.release.wait()
            answer: Json = await method(path, *rest)
            if "events" not in path:
                self.writes.append(name)
            return answer

        return call


class One:
    """An operator without its process: what it sees is what it lists."""

    def __init__(self, kube: Kube, place: Place) -> None:
        self.kube = Held(kube)
        self.store = Store()
        self._place = place
        self._feed = Feed(self.store, lambda _: None, lambda _: None)
        connection: Any = self.kube
        self._reconciler = Reconciler(connection, self.store, Metrics(), lambda: datetime.now(UTC), "test")

    async def look(self) -> None:
        connection: Any = self.kube
        await self._feed.resync(connection, (self._place.namespace,), "")

    async def run(self) -> list[str]:
        """One pass over the only WeightSync; its writes."""
        before = len(self.kube.writes)
        (seen,) = self.store.syncs
        await self._reconciler.run(seen.uid)
        return self.kube.writes[before:]


@contextlib.asynccontextmanager
async def pair(cluster: LightCluster, place: Place) -> AsyncIterator[tuple[One, One]]:
    """Two operators, of which the first has planned engine a, and both have seen it."""
    configuration = client.Configuration()  # the library reads KUBECONFIG when it is imported
    configuration.host, configuration.ssl_ca_cert = cluster.url, str(cluster.authority)
    configuration.cert_file, configuration.key_file = str(cluster.admin.certificate), str(cluster.admin.key)
    kube = Kube(configuration)
    try:
        first, second = One(kube, place), One(kube, place)
        place.weightsync()
        place.trainer()
        place.engine("a")
        await first.look()
        await first.run()
        await first.look()
        await second.look()
        yield first, second
    finally:
        await kube.close()


def held_back(place: Place) -> set[str]:
    """Slices that no head names."""
    return {part["metadata"]["name"] for part in place.slices()} - set(place.head()["slices"])


def test_a_head_of_a_deposed_operator_is_refused(light_cluster: LightCluster, place: Place) -> None:
    """It goes on for a moment with what it saw: the newer head stays, and what it left behind is collected."""

    async def scenario() -> None:
        async with pair(light_cluster, place) as (deposed, leader):
            place.engine("b")
            await deposed.look()
            deposed.kube.hold = "apply"
            late = asyncio.create_task(deposed.run())
            await deposed.kube.waiting.wait()
            place.engine("c")
            await leader.look()
            await leader.run()
            head = place.head()
            deposed.kube.release.set()
            with pytest.raises(Conflict):
                await late
            assert place.head() == head
            assert set(place.engines()) == {"a", "b", "c"}
            await leader.look()
            await leader.run()
            assert place.head() == head
            assert held_back(place) == set()

    asyncio.run(scenario())


@pytest.mark.parametrize("step", ["create", "apply", "delete"])
def test_an_operator_that_dies_in_its_pass_is_followed(light_cluster: LightCluster, place: Place, step: str) -> None:
    """The next one comes to the same plan, writes nothing twice, and leaves nothing behind."""

    async def scenario() -> None:
        async with pair(light_cluster, place) as (dying, leader):
            place.engine("b")
            await dying.look()
            dying.kube.hold = step
            task = asyncio.create_task(dying.run())
            await dying.kube.waiting.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            done = list(dying.kube.writes[2:])  # after those of engine a: its slices, its status
            await leader.look()
            done += await leader.run()
            assert set(place.engines()) == {"a", "b"}
            assert held_back(place) == set()
            assert place.head()["generation"] == 2
            await leader.look()
            assert await leader.run() == []
            assert sorted(done[-3:]) == ["apply", "create", "delete"]
            assert len(done) <= 4

    asyncio.run(scenario())


def test_a_slice_that_a_deposed_operator_deletes_comes_back(light_cluster: LightCluster, place: Place) -> None:
    """It clears away what its own head no longer named, though the newer head names it again."""

    async def scenario() -> None:
        async with pair(light_cluster, place) as (deposed, leader):
            uid = place.engine("b")
            await deposed.look()
            deposed.kube.hold = "delete"
            late = asyncio.create_task(deposed.run())
            await deposed.kube.waiting.wait()  # its head is written, the slice of a alone is about to go
            place.delete_pod("b")
            await leader.look()
            await leader.run()
            assert uid not in {engine["leader"] for engine in place.engines().values()}
            deposed.kube.release.set()
            await late
            await leader.look()
            await leader.run()
            assert set(place.engines()) == {"a"}
            assert held_back(place) == set()

    asyncio.run(scenario())
