"""Following WeightSyncs: what is asked of the API, how often, and what an outage costs. All in virtual time."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog

from weightsync.errors import InputError, PeerError, Refused
from weightsync.plan import Plan
from weightsync_agent.plan_feed.from_slices import SlicesFeed, initial_gate_allows, pause_after

Json = dict[str, Any]
Run = Callable[[Coroutine[Any, Any, None]], None]
LIST, SLICES = (
    f"/apis/weightsync.io/v1alpha1/namespaces/rl/{plural}" for plural in ("weightsyncs", "weightsyncslices")
)


def weightsync(name: str, *slices: str, term: int = 1, generation: int = 1, coordinator: str = "u-t") -> Json:
    """A WeightSync whose head names ``slices``; without any it has no head."""
    head = {"term": term, "generation": generation, "coordinator": coordinator, "slices": list(slices)}
    selectors = {part: {"selector": {"matchLabels": {name: part}}} for part in ("trainer", "rollout")}
    return {
        "metadata": {"name": name, "namespace": "rl", "uid": f"uid-{name}", "creationTimestamp": f"2026-{name}"},
        "spec": selectors,
        "status": {"head": head} if slices else {},
    }


def part(*uids: str) -> Json:
    """A slice with these sources."""
    rank = {"rank": 0, "worldSize": 1, "nonce": "1" * 16}
    return {
        "metadata": {"name": "s"},
        "spec": {"sources": [{"uid": uid, "pod": uid, "address": "h:1", "ranks": [rank]} for uid in uids]},
    }


class Api:
    """An API server in memory: objects, a stream of events, outages, and what was asked."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.slices: dict[str, Json] = {}
        self.events: asyncio.Queue[Json | Exception | None] = asyncio.Queue()
        self.asked: Counter[str] = Counter()
        self.down: Exception | None = None
        self.refuse_watch: Exception | None = None

    async def get(self, path: str) -> Json:
        self.asked[path] += 1
        await asyncio.sleep(0.001)
        if self.down:
            raise self.down
        if path == LIST:
            return {"metadata": {"resourceVersion": "10"}, "items": list(self.objects.values())}
        name = path.removeprefix(SLICES + "/")
        if name not in self.slices:
            raise Refused(f"GET {path}: 404", status=404)
        return self.slices[name]

    @asynccontextmanager
    async def watch(self, path: str, version: str) -> AsyncIterator[AsyncIterator[Json]]:
        self.asked[f"watch {version}"] += 1
        await asyncio.sleep(0.001)
        if self.down or self.refuse_watch:
            raise self.down or self.refuse_watch  # type: ignore[misc]
        yield self._stream()

    async def _stream(self) -> AsyncIterator[Json]:
        while (event := await self.events.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    def say(self, kind: str, one: Json, version: str = "11") -> None:
        """Change the object and tell watchers."""
        if kind == "DELETED":
            self.objects.pop(one["metadata"]["name"], None)
        elif kind != "BOOKMARK":
            self.objects[one["metadata"]["name"]] = one
        self.events.put_nowait(
            {"type": kind, "object": one | {"metadata": one["metadata"] | {"resourceVersion": version}}}
        )


async def us() -> dict[str, str]:
    """Our pod's labels."""
    return {"a": "trainer"}


async def following(api: Api, main: Callable[[SlicesFeed], Coroutine[Any, Any, None]]) -> None:
    """Run ``main`` with a feed of pod u-t."""
    random.seed(1)
    feed = SlicesFeed(api, "rl", "u-t", us)  # type: ignore[arg-type]
    await feed.start()
    try:
        await main(feed)
    finally:
        await feed.stop()


async def plan(feed: SlicesFeed) -> Plan:
    """The next plan, in at most a minute of the loop's time."""
    return await asyncio.wait_for(feed.next(), 60)


async def no_plan(feed: SlicesFeed, seconds: float = 30) -> None:
    """Nothing changes for so long."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(feed.next(), seconds)


def uids(found: Plan) -> list[str]:
    """The plan's sources."""
    return [source.uid for source in found.sources]


def test_a_new_head_is_a_new_plan_and_known_slices_are_not_fetched_again(in_virtual_time: Run) -> None:
    """Only the slice that a head newly names is fetched; one listing, one watch."""
    api = Api()
    api.objects = {"a": weightsync("a", "s1", "s2")}
    api.slices = {"s1": part("u-t"), "s2": part("u-1"), "s3": part("u-2")}

    async def main(feed: SlicesFeed) -> None:
        first = await plan(feed)
        assert (first.name, first.term, first.generation, uids(first)) == ("rl/a", 1, 1, ["u-t", "u-1"])
        api.say("MODIFIED", weightsync("a", "s1", "s3", generation=2))
        second = await plan(feed)
        assert (second.generation, uids(second)) == (2, ["u-t", "u-2"])
        assert feed.current == second
        api.say("MODIFIED", weightsync("a", "s1", "s3", generation=2))
        await no_plan(feed)

    in_virtual_time(following(api, main))
    assert api.asked == {LIST: 1, "watch 10": 1, **{f"{SLICES}/s{n}": 1 for n in (1, 2, 3)}}


def test_the_plan_is_that_of_the_weightsync_that_names_us(in_virtual_time: Run) -> None:
    """Others in the namespace, older ones and ones without a head, are looked at and passed over."""
    api = Api()
    api.objects = {"a": weightsync("a"), "b": weightsync("b", "s1"), "c": weightsync("c", "s2")}
    api.slices = {"s1": part("u-1"), "s2": part("u-t")}

    async def main(feed: SlicesFeed) -> None:
        assert (await plan(feed)).name == "rl/c"

    in_virtual_time(following(api, main))


def test_who_is_named_no_more_gets_an_empty_plan(in_virtual_time: Run) -> None:
    """Left out of the slices, or the WeightSync deleted: no coordinator, nobody to feed; then a plan again."""
    api = Api()
    api.slices = {"s1": part("u-t"), "s2": part("u-1")}

    async def main(feed: SlicesFeed) -> None:
        await no_plan(feed)
        for leave in (("MODIFIED", weightsync("a", "s2", generation=2)), ("DELETED", weightsync("a", "s1"))):
            api.say("ADDED", weightsync("a", "s1"))
            assert uids(await plan(feed)) == ["u-t"]
            api.say(*leave)
            left = await plan(feed)
            assert (left.name, left.coordinator, left.sources, left.engines) == ("rl/a", "", (), ())

    in_virtual_time(following(api, main))


def test_an_outage_keeps_the_plan_and_ends_with_the_newest(in_virtual_time: Run) -> None:
    """The watch breaks, lists fail for ten minutes: the plan stays, tries are spaced, the problem is said once."""
    api = Api()
    api.objects = {"a": weightsync("a", "s1")}
    api.slices = {"s1": part("u-t"), "s2": part("u-t", "u-1")}

    async def main(feed: SlicesFeed) -> None:
        first = await plan(feed)
        api.down = PeerError("the API server cannot be reached")
        api.events.put_nowait(PeerError("the API server cannot be reached"))
        before = api.asked.total()
        with structlog.testing.capture_logs() as logs:
            await no_plan(feed, 600)
        assert feed.current == first
        assert feed.problem == "the API server cannot be reached"
        assert [entry["event"] for entry in logs] == ["the plan cannot be followed"]
        assert 60 <= api.asked.total() - before <= 130
        api.down, api.objects = None, {"a": weightsync("a", "s2", generation=5)}
        assert uids(await plan(feed)) == ["u-t", "u-1"]
        assert feed.problem == ""

    in_virtual_time(following(api, main))


@pytest.mark.parametrize("where", ["at the start", "among the events"])
def test_a_version_that_is_too_old_is_listed_anew(in_virtual_time: Run, where: str) -> None:
    """410 is no trouble to speak of: what changed meanwhile comes with the list, within a second."""
    api = Api()
    api.objects = {"a": weightsync("a", "s1")}
    api.slices = {"s1": part("u-t"), "s2": part("u-t", "u-1")}
    gone = Refused("too old", status=410)

    async def main(feed: SlicesFeed) -> None:
        await plan(feed)
        api.objects = {"a": weightsync("a", "s2")}
        if where == "at the start":
            api.refuse_watch = gone
            api.events.put_nowait(None)
        else:
            api.events.put_nowait(gone)
        assert uids(await asyncio.wait_for(feed.next(), 1)) == ["u-t", "u-1"]
        assert feed.problem == ""

    in_virtual_time(following(api, main))
    assert api.asked[LIST] >= 2


def test_a_watch_that_the_server_ends_goes_on_where_it_was(in_virtual_time: Run) -> None:
    """The usual end after some minutes costs no list; the last bookmark's version counts."""
    api = Api()
    api.objects = {"a": weightsync("a", "s1")}
    api.slices = {"s1": part("u-t")}

    async def main(feed: SlicesFeed) -> None:
        await plan(feed)
        api.say("BOOKMARK", {"metadata": {}}, "17")
        api.events.put_nowait(None)
        await no_plan(feed)

    in_virtual_time(following(api, main))
    assert api.asked == {LIST: 1, "watch 10": 1, "watch 17": 1, f"{SLICES}/s1": 1}


def test_a_watch_that_ends_at_once_does_not_spin(in_virtual_time: Run) -> None:
    """A proxy that cuts every watch is asked ten times a minute, not as fast as it answers."""
    api = Api()

    async def main(feed: SlicesFeed) -> None:
        for _ in range(1000):
            api.events.put_nowait(None)
        await no_plan(feed, 600)

    in_virtual_time(following(api, main))
    assert api.asked.total() < 150


def test_a_slice_that_is_not_there_yet_is_asked_for_again(in_virtual_time: Run) -> None:
    """A head that names a slice that was deleted and is made anew: the old plan stays until it can be read."""
    api = Api()
    api.objects = {"a": weightsync("a", "s1")}
    api.slices = {"s1": part("u-t")}

    async def main(feed: SlicesFeed) -> None:
        first = await plan(feed)
        api.say("MODIFIED", weightsync("a", "s2", generation=2))
        await no_plan(feed)
        assert feed.current == first
        assert "404" in feed.problem
        api.slices["s2"] = part("u-t", "u-1")
        assert uids(await plan(feed)) == ["u-t", "u-1"]
        assert feed.problem == ""

    in_virtual_time(following(api, main))


def test_anothers_trouble_is_not_ours(in_virtual_time: Run) -> None:
    """A WeightSync that cannot be read, or whose slices are missing, keeps no plan from the pods of another."""
    api = Api()
    broken = weightsync("b", "s1")
    broken["status"]["head"]["term"] = "x"
    api.objects = {"a": weightsync("a", "missing"), "b": broken, "c": weightsync("c", "s1")}
    api.slices = {"s1": part("u-t")}

    async def main(feed: SlicesFeed) -> None:
        assert (await plan(feed)).name == "rl/c"
        api.say("DELETED", weightsync("c", "s1"))
        left = await plan(feed)
        assert (left.name, left.sources) == ("rl/c", ())

    in_virtual_time(following(api, main))


def test_our_own_trouble_keeps_the_plan(in_virtual_time: Run) -> None:
    """If our WeightSync becomes unreadable, the last plan stays, and the problem names the field."""
    api = Api()
    api.objects = {"a": weightsync("a", "s1")}
    api.slices = {"s1": part("u-t")}

    async def main(feed: SlicesFeed) -> None:
        first = await plan(feed)
        broken = weightsync("a", "s1", generation=2)
        broken["status"]["head"]["term"] = "x"
        api.say("MODIFIED", broken)
        await no_plan(feed)
        assert feed.current == first
        assert "WeightSync rl/a: head.term" in feed.problem

    in_virtual_time(following(api, main))


def test_the_head_is_read_at_each_call_by_labels(in_virtual_time: Run) -> None:
    """One list per call, no slice, no watch; None where nothing selects the pod; else an error."""
    api = Api()
    api.objects = {"a": weightsync("a", "s1", term=7, coordinator="u-c"), "b": weightsync("b", "s2", term=9)}

    async def main() -> None:
        feed = SlicesFeed(api, "rl", "u-e", us)  # type: ignore[arg-type]
        assert await feed.head() == (7, "u-c")
        api.objects["a"] = weightsync("a", "s1", term=8, coordinator="u-d")
        assert await feed.head() == (8, "u-d")
        api.objects["a"] = weightsync("a")
        assert await feed.head() is None
        del api.objects["a"]
        assert await feed.head() is None
        api.objects["x"] = weightsync("x") | {"spec": {}}
        with pytest.raises(InputError, match="WeightSync rl/x"):
            await feed.head()
        api.down = PeerError("down")
        with pytest.raises(PeerError, match="down"):
            await feed.head()

    in_virtual_time(main())
    assert api.asked == {LIST: 6}


def test_an_engine_reads_the_plan_of_the_weightsync_that_selects_it(in_virtual_time: Run) -> None:
    """Each time anew, and each slice once; none before there is a head."""
    api = Api()
    api.objects["a"] = weightsync("a", "s1", term=7, coordinator="u-c")
    api.slices["s1"] = part("u-c")

    async def main() -> None:
        feed = SlicesFeed(api, "rl", "u-e", us)  # type: ignore[arg-type]
        for _ in range(2):
            plan = await feed.plan()
            assert plan is not None
            assert (plan.term, plan.coordinator, plan.join_policy) == (7, "u-c", "Peer")
        api.objects["a"] = weightsync("a")
        assert await feed.plan() is None
        api.objects["x"] = weightsync("x") | {"spec": {}}
        del api.objects["a"]
        with pytest.raises(InputError, match="WeightSync rl/x"):
            await feed.plan()

    in_virtual_time(main())
    assert sum("s1" in path for path in api.asked) == 1


def test_the_initial_gate_is_asked_once(in_virtual_time: Run) -> None:
    """Open where nobody coordinates and nothing was published; an unreadable WeightSync is no permission."""
    api = Api()

    async def allows() -> bool:
        return await initial_gate_allows(api, "rl", {"a": "rollout"})  # type: ignore[arg-type]

    async def main() -> None:
        assert not await allows()
        api.objects["a"] = weightsync("a")
        assert await allows()
        api.objects["a"] = weightsync("a", "s1")
        assert not await allows()
        api.objects = {"a": weightsync("a") | {"spec": {}}}
        with pytest.raises(InputError):
            await allows()

    in_virtual_time(main())


@pytest.mark.parametrize(
    ("failures", "luck", "seconds"),
    [
        (0, 0.0, 0.1),
        (0, 1.0, 0.2),
        (1, 1.0, 0.4),
        (3, 0.5, 1.2),
        (6, 1.0, 10.0),
        (10**6, 1.0, 10.0),
        (10**6, 0.0, 5.0),
    ],
)
def test_pauses_double_up_to_a_bound(failures: int, luck: float, seconds: float) -> None:
    """From 0.2 s to 10 s, and up to half of it taken off by luck: a thousand agents do not come at once."""
    assert pause_after(failures, luck) == pytest.approx(seconds)
