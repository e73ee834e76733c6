"""Passes that cannot be finished: one WeightSync's trouble stays its own, and its own status tells it."""

import itertools
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.build import manifests
from tests.build.pods import engine, source_rank, trainer
from weightsync.errors import InputError, WeightSyncError
from weightsync_operator import observe
from weightsync_operator.kube.client import Json
from weightsync_operator.kube.errors import Forbidden, KubeError, NotFound, Unavailable
from weightsync_operator.metrics import Metrics
from weightsync_operator.planning.pods import Pod
from weightsync_operator.reconcile import Reconciler
from weightsync_operator.store import Store

UID = "uid-policy"


class Server:
    """Keeps one WeightSync and its slices; refuses to make what it is told to."""

    def __init__(self) -> None:
        self.versions = itertools.count(2)
        self.sync = manifests.weightsync()
        self.sync["metadata"] |= {"namespace": "default", "uid": UID, "resourceVersion": "1", "generation": 1}
        self.slices: dict[str, Json] = {}
        self.writes: list[str] = []
        self.refuses: KubeError | None = None

    async def create(self, path: str, body: Json) -> Json:
        kind = path.rsplit("/", 1)[1]
        if kind == "weightsyncslices" and self.refuses is not None:
            raise self.refuses
        self.writes.append(f"create {kind}")
        name = body["metadata"].setdefault("name", "made")
        body["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": str(next(self.versions))}
        if kind == "weightsyncslices":
            self.slices[name] = body
        return body

    async def apply(self, _: str, body: Json, __: str) -> Json:
        self.writes.append("apply status")
        self.sync["status"] = body["status"]
        self.sync["metadata"]["resourceVersion"] = str(next(self.versions))
        return self.sync

    async def get(self, path: str) -> Json:
        try:
            return self.slices[path.rsplit("/", 1)[1]]
        except KeyError:
            raise NotFound(path, 404) from None

    async def delete(self, path: str) -> Json:
        return self.slices.pop(path.rsplit("/", 1)[1])


class Operator:
    """Passes over that WeightSync, with these pods."""

    def __init__(self, server: Server, *pods: Pod) -> None:
        self.server, self.store, self.metrics = server, Store(), Metrics()
        self.store.synced = True
        self.see(*pods)
        kube: Any = server
        self.reconciler = Reconciler(kube, self.store, self.metrics, lambda: datetime.now(UTC), "test")

    def see(self, *pods: Pod) -> None:
        """What the API server has of the WeightSync now, and these pods."""
        self.store.syncs.put(UID, observe.version(self.server.sync), observe.weightsync(self.server.sync))
        for pod in pods:
            self.store.pods.put(pod.uid, 1, pod)

    async def run(self) -> None:
        await self.reconciler.run(UID)

    async def fails(self, kind: type[WeightSyncError]) -> list[str]:
        """A pass that does; its writes."""
        before = len(self.server.writes)
        with pytest.raises(kind):
            await self.run()
        return self.server.writes[before:]

    def condition(self, kind: str) -> tuple[str, str, str]:
        (found,) = (c for c in self.server.sync["status"]["conditions"] if c["type"] == kind)
        return found["status"], found["reason"], found["message"]


async def test_slices_that_the_api_refuses_are_told_once_and_heal() -> None:
    """A quota, or another's webhook: the object says so, keeps its plan, and is not written again for it."""
    server = Server()
    operator = Operator(server, trainer(), engine("a"))
    await operator.run()
    head, degraded = server.sync["status"]["head"], operator.condition("Degraded")
    server.refuses = Forbidden("POST weightsyncslices: 403 exceeded quota", 403)
    operator.see(engine("b"))
    assert await operator.fails(Forbidden) == ["apply status", "create events"]
    said = "POST weightsyncslices: 403 exceeded quota; the last plan stays in force"
    assert operator.condition("Ready") == operator.condition("PlanReady") == ("False", "PlanRefused", said)
    assert (server.sync["status"]["head"], operator.condition("Degraded")) == (head, degraded)
    assert (
        b'weightsync_condition{namespace="default",type="Ready",weightsync="policy"} 0.0' in operator.metrics.text()
    )
    assert await operator.fails(Forbidden) == [], "nothing changed"
    server.refuses = None
    await operator.run()
    assert operator.condition("PlanReady")[:2] == ("True", "Planned")
    assert server.sync["status"]["head"]["generation"] == head["generation"] + 1


async def test_what_a_later_try_may_bring_is_not_told() -> None:
    """An API server that is busy is no trouble of the object's."""
    server = Server()
    server.refuses = Unavailable("POST weightsyncslices: 429", 429)
    assert await Operator(server, trainer(), engine()).fails(Unavailable) == []


async def test_pods_that_make_no_plan_are_an_error_of_their_weightsync_alone() -> None:
    """More stages than a target has routes: it ended the operator, and with it every other WeightSync's service."""
    stages = [[source_rank(r, world=320, stage=r, stages=320) for r in range(64 * n, 64 * n + 64)] for n in range(5)]
    pods = [trainer(f"trainer-{number}", *ranks) for number, ranks in enumerate(stages)]
    operator = Operator(Server(), *pods, engine())
    assert await operator.fails(InputError) == ["apply status", "create events"]
    assert "what the pods announce makes no plan: routes: " in operator.condition("Ready")[2]


async def test_a_spec_that_cannot_be_read_is_told() -> None:
    """After a rollback of the CRD and the operator: what the newer one admitted."""
    server = Server()
    operator = Operator(server, trainer(), engine())
    await operator.run()
    server.sync["spec"]["joinPolicy"] = "Later"
    server.sync["metadata"] |= {"resourceVersion": "90", "generation": 2}
    operator.see()
    assert await operator.fails(InputError) == ["apply status", "create events"]
    assert operator.condition("Ready")[1:] == (
        "PlanRefused",
        "spec.joinPolicy: Input should be 'Peer' or 'NextVersion': write it anew with a CRD of this release; the "
        "last plan stays in force",
    )
    assert server.sync["status"]["observedGeneration"] == 1, "the plan is not yet the spec's"


async def test_a_slice_that_cannot_be_read_is_planned_anew() -> None:
    """An operator that is rolled back finds slices of the newer one: it ended, again and again."""
    server = Server()
    await Operator(server, trainer(), engine("a")).run()
    for made in server.slices.values():
        for one in made["spec"].get("engines", []):
            one["mode"] = "Telepathic"
    operator = Operator(server, trainer(), engine("a"))
    await operator.run()
    (mode,) = {one["mode"] for made in server.slices.values() for one in made["spec"].get("engines", [])} - {
        "Telepathic"
    }
    assert mode == "Staged"
    assert operator.condition("PlanReady")[:2] == ("True", "Planned")


async def test_the_series_of_one_that_is_made_anew_stay() -> None:
    """Where its former self is found to be gone only later."""
    operator = Operator(Server(), trainer(), engine())
    await operator.run()
    former = operator.store.sync(UID)
    assert former is not None
    operator.reconciler.forget(former)
    assert b'weightsync="policy"' in operator.metrics.text(), "one of that name is there"
    operator.store.syncs.drop(UID, 99)
    operator.reconciler.forget(former)
    assert b'weightsync="policy"' not in operator.metrics.text()


async def test_one_that_is_suspended_is_told_apart() -> None:
    """It is not Ready, and nobody need act: the alert does not wait for its spec."""
    server = Server()
    operator = Operator(server, trainer(), engine())
    await operator.run()
    series = b'weightsync_suspended{namespace="default",weightsync="policy"} '
    assert series + b"0.0" in operator.metrics.text()
    server.sync["spec"]["suspend"] = True
    server.sync["metadata"] |= {"generation": 2, "resourceVersion": "99"}
    operator.see()
    await operator.run()
    assert operator.condition("Ready")[:2] == ("False", "Suspended")
    assert series + b"1.0" in operator.metrics.text()
