"""Plans from a real API server with the project's CRDs, read by agents with no more rights than they have."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from weightsync import names
from weightsync.announcement import SourceRank, TargetRank
from weightsync.api.v1alpha1.slice import SliceSpec
from weightsync.errors import PeerError
from weightsync.plan import Engine, Plan, Route, Source, Strategy, Target, Transfer
from weightsync_agent.own_pod.base import Identity
from weightsync_agent.plan_feed.from_slices import SlicesFeed, initial_gate_allows

pytestmark = pytest.mark.apiserver

CRDS = Path(__file__).parents[3] / "crds"
TRAINER, ROLLOUT = {"app": "trainer"}, {"app": "rollout"}


@pytest.fixture
async def crds(space: Any, until: Callable[..., Any]) -> None:
    """The CRDs, served."""
    base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for path in sorted(CRDS.glob("*.yaml")):
        definition = yaml.safe_load(path.read_text())
        status, text = space.cluster.client.call("POST", base, definition)
        assert status in {201, 409}, text
    await until(lambda: space.cluster.client.call("GET", f"{space.ours}/{names.PLURAL}")[0] == 200, "CRDs are served")
    await until(lambda: space.cluster.client.call("GET", f"{space.ours}/{names.SLICE_PLURAL}")[0] == 200, "CRDs")


def source(pod: Identity) -> Source:
    """A trainer pod of one rank."""
    return Source(
        uid=pod.uid, pod=pod.name, address="10.0.0.1:8960", ranks=(SourceRank(rank=0, world_size=1, nonce="1" * 16),)
    )


def engine(name: str, by: Identity) -> Engine:
    """An engine of one rank, fed by that trainer."""
    rank = TargetRank(rank=0, layout="a" * 32, program="b" * 32)
    routes = (Route(stage=0, source=by.uid, rank=0),)
    target = Target(uid=f"uid-{name}", pod=name, address="10.0.0.2:8960", rank=rank, routes=routes)
    return Engine(name=name, leader=f"uid-{name}", address="10.0.0.2:8960", incarnation="life-1", targets=(target,))


class Operator:
    """What the operator writes, by hand."""

    def __init__(self, space: Any, name: str = "policy") -> None:
        self.space = space
        self.name = name
        selectors = {
            "trainer": {"selector": {"matchLabels": TRAINER}},
            "rollout": {"selector": {"matchLabels": ROLLOUT}},
        }
        spec = selectors | {"strategy": {"deadlineSeconds": 30}, "transfer": {"bucketSize": "64Ki"}}
        body = self._object(names.KIND, name) | {"spec": spec}
        self.uid = space.call("POST", f"{space.ours}/{names.PLURAL}", body)["metadata"]["uid"]

    def slice(self, name: str, **parts: Any) -> str:
        """A slice; its name."""
        spec = SliceSpec(**parts).model_dump(mode="json")
        body = self._object(names.SLICE_KIND, name) | {"spec": spec}
        self.space.call("POST", f"{self.space.ours}/{names.SLICE_PLURAL}", body)
        return name

    def head(
        self, *slices: str, term: int = 1, generation: int = 1, coordinator: str = "", version: str = ""
    ) -> None:
        """The head."""
        path = f"{self.space.ours}/{names.PLURAL}/{self.name}"
        found = self.space.call("GET", path)
        head = {"term": term, "generation": generation, "coordinator": coordinator, "slices": list(slices)}
        self.space.call("PUT", f"{path}/status", found | {"status": {"head": head, "version": version}})

    def delete(self) -> None:
        """The WeightSync goes."""
        self.space.call("DELETE", f"{self.space.ours}/{names.PLURAL}/{self.name}")

    def _object(self, kind: str, name: str) -> dict[str, Any]:
        return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": {"name": name}}


@asynccontextmanager
async def following(space: Any, pod: Identity, url: str = "") -> AsyncIterator[SlicesFeed]:
    """The feed of ``pod``'s agent."""

    async def labels() -> dict[str, str]:
        return TRAINER

    async with space.api(pod, url) as api:
        feed = SlicesFeed(api, space.name, pod.uid, labels)
        await feed.start()
        try:
            yield feed
        finally:
            await feed.stop()


async def soon(feed: SlicesFeed) -> Plan:
    """The next plan, within a deadline."""
    return await asyncio.wait_for(feed.next(), 60)


async def test_head_changes_become_plans(space: Any, crds: None) -> None:
    """What an operator writes is the plan that an agent reads: new engines, a new term, an end."""
    pod = space.pod("trainer-0", TRAINER)
    async with following(space, pod) as feed:
        operator = Operator(space)
        operator.slice("s-sources", sources=(source(pod),))
        operator.slice("s-one", engines=(engine("e1", pod),))
        operator.head("s-sources", "s-one", coordinator=pod.uid)
        first = await soon(feed)
        assert first == Plan(
            name=f"{space.name}/policy",
            term=1,
            generation=1,
            coordinator=pod.uid,
            transfer=Transfer(bucket_size="64Ki"),
            strategy=Strategy(deadline_seconds=30),
            sources=(source(pod),),
            engines=(engine("e1", pod),),
        )
        operator.slice("s-two", engines=(engine("e1", pod), engine("e2", pod)))
        operator.head("s-sources", "s-two", generation=2, coordinator=pod.uid)
        second = await soon(feed)
        assert (second.generation, [one.name for one in second.engines]) == (2, ["e1", "e2"])
        operator.head("s-sources", "s-two", term=2, generation=3, coordinator="another")
        assert await feed.head() == (2, "another")
        third = await soon(feed)
        assert (third.term, third.coordinator) == (2, "another")
        operator.delete()
        last = await soon(feed)
        assert (last.term, last.coordinator, last.sources, last.engines) == (2, "", (), ())
        assert await feed.head() is None


async def test_the_plan_stays_through_an_outage_and_the_newest_follows(
    space: Any, crds: None, relay: Any, until: Callable[..., Any]
) -> None:
    """Connections are cut in the middle of a watch: the plan stays, and what changed comes afterwards."""
    pod = space.pod("trainer-0", TRAINER)
    operator = Operator(space)
    operator.slice("s1", sources=(source(pod),))
    operator.head("s1", coordinator=pod.uid)
    async with following(space, pod, relay.url) as feed:
        first = await soon(feed)
        await relay.down()
        operator.head("s1", generation=2, coordinator=pod.uid)
        await until(lambda: "cannot be reached" in feed.problem, "the outage is noticed")
        assert feed.current == first
        with pytest.raises(PeerError, match="cannot be reached"):
            await feed.head()
        await relay.up()
        assert (await soon(feed)).generation == 2
        await until(lambda: not feed.problem, "the watch is open again")


async def test_an_agent_without_the_right_to_read_says_so(space: Any, crds: None, until: Callable[..., Any]) -> None:
    """A role that was forgotten is a sentence, not silence; once it is bound the plan comes."""
    pod = space.pod("trainer-0", TRAINER)
    operator = Operator(space)
    operator.slice("s1", sources=(source(pod),))
    operator.head("s1", coordinator=pod.uid)
    binding = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space.name}/rolebindings"
    before = space.call("GET", f"{binding}/agent")
    space.call("DELETE", f"{binding}/agent")
    async with following(space, pod) as feed:
        await until(lambda: "403 Forbidden" in feed.problem, "the refusal is said")
        assert "weightsyncs" in feed.problem
        space.call(
            "POST", binding, {key: before[key] for key in ("roleRef", "subjects")} | {"metadata": {"name": "agent"}}
        )
        assert (await soon(feed)).generation == 1


async def test_the_initial_gate_is_read_from_spec_and_status(space: Any, crds: None) -> None:
    """Open by default until somebody coordinates or something was published; closed for pods that nothing selects."""
    pod = space.pod("rollout-1", ROLLOUT)
    async with space.api(pod) as api:
        assert not await initial_gate_allows(api, space.name, ROLLOUT)
        operator = Operator(space)
        assert await initial_gate_allows(api, space.name, ROLLOUT)
        assert not await initial_gate_allows(api, space.name, {"app": "else"})
        operator.head(coordinator="somebody")
        assert not await initial_gate_allows(api, space.name, ROLLOUT)
        operator.head(version="aa.1")
        assert not await initial_gate_allows(api, space.name, ROLLOUT)
