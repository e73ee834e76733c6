"""The driver of a join: whom it asks, what it tells the machine, and that its end is one."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.agent.protocol.test_joiner import BUCKETS, PROGRAM, decided
from weightsync.errors import PeerError, Refused, TransferError
from weightsync.plan import Transfer
from weightsync.wire.v1 import Accepted, Capabilities, Decided, Held, HeldRank, Lease, Region
from weightsync_agent.drivers import joining as driver
from weightsync_agent.drivers import neighbours
from weightsync_agent.drivers.joining import Joining
from weightsync_agent.drivers.neighbours import AT_ONCE, Neighbours
from weightsync_agent.peers.client import Unreachable
from weightsync_agent.protocol import joiner as j
from weightsync_agent.protocol.joiner import JoinerState as S

OURS = Capabilities(mooncake="1", transport="tcp")


class Client:
    """Agents by address and path; what is not there is unreachable."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[Any], Any]] = {}
        self.asked: list[str] = []

    async def call(self, address: str, path: str, kind: type, body: Any = None, *, seconds: float) -> Any:
        await asyncio.sleep(0)
        path = path.partition("?")[0]
        self.asked.append(f"{address}{path}")
        if path == "/v1/leases/end":
            return Accepted()
        if f"{address}{path}" not in self.answers:
            raise Unreachable(f"{address} is not there")
        return self.answers[f"{address}{path}"](body)


class World:
    """One joining engine, a coordinator c, and engines h and i (or others) that hold version 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, holders: Sequence[str] = "hi", **plan: Any) -> None:
        self.client = Client()
        self.client.answers = {
            "c:1/v1/held": lambda body: Held(uid="c", decided=decided()),
            **{f"{uid}:1/v1/held": lambda body, uid=uid: Held(uid=uid, decided=decided(), most=2) for uid in holders},
            **{f"{uid}:1/v1/leases": lambda body, uid=uid: self.lease(uid) for uid in holders},
        }
        target = SimpleNamespace(rank=SimpleNamespace(rank=0, program=PROGRAM))
        engines = [
            SimpleNamespace(
                leader=uid, address=f"{uid}:1", mode="Staged", targets=[SimpleNamespace(uid=uid, rank=target.rank)]
            )
            for uid in (*holders, "me")
        ]
        self.plan: Any = SimpleNamespace(**{
            "term": 3, "coordinator": "c", "source": lambda uid: SimpleNamespace(address="c:1"), "engines": engines,
            "suspend": False, "join_policy": "Peer", "transfer": Transfer(),
            "strategy": SimpleNamespace(deadline_seconds=60, pause_mode="Retract"), **plan,
        })  # fmt: skip
        self.needs: j.Needs | j.NeedsNothing = j.Needs(None, sealed=False)
        self.taken: list[Any] = []
        self.pulls: list[str] = []
        self.pull: Callable[[], Any] | None = None
        monkeypatch.setattr(driver, "pull", self._pull)
        ranks: Any = SimpleNamespace(targets={0: SimpleNamespace(program=SimpleNamespace(digest=PROGRAM))})
        client: Any = self.client
        start: Any = None
        engine: Any = SimpleNamespace(needs=lambda seconds: self.needs, take=self._take)
        self.joining = Joining(
            "me", engine, ranks, neighbours=Neighbours("me", self._read, client, believed=True), client=client,
            start=start, ours=OURS, stall_seconds=1.0,
        )  # fmt: skip

    async def _read(self) -> Any:
        return self.plan

    @staticmethod
    def lease(uid: str, holds: Decided | None = None) -> Lease:
        region = Region(session="s", address=0, nbytes=100)
        rank = HeldRank(rank=0, program=PROGRAM, region=region, buckets=BUCKETS)
        return Lease(uid=uid, decided=holds or decided(), seconds=9.0, ranks=(rank,))

    async def _pull(self, ranks: Any, lease: Lease, how: Any) -> None:
        self.pulls.append(lease.uid)
        if self.pull is not None:
            await self.pull()

    async def _take(self, own: Any, found: Decided, coordinator: str, mode: str) -> None:
        self.taken.append((own, found, coordinator, mode))

    async def until(self, *states: S) -> None:
        async with asyncio.timeout(5):
            while self.joining.machine.state not in states:  # noqa: ASYNC110 - a machine has no event
                await asyncio.sleep(0.002)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    return lambda **plan: World(monkeypatch, **plan)


async def test_an_engine_reads_from_another_and_takes_it_over(world: Callable[..., World]) -> None:
    """The coordinator is asked first, then engines, itself never; the holder learns that it reads no more."""
    w = world()
    w.joining.look()
    await w.until(S.IDLE)
    await asyncio.sleep(0.01)
    assert len(w.pulls) == 1
    assert w.taken == [(None, decided(), "", "Retract")]
    assert w.client.asked[0] == "c:1/v1/held"
    assert f"{w.pulls[0]}:1/v1/leases/end" in w.client.asked
    assert not any(asked.startswith("me") for asked in w.client.asked)
    await w.joining.close()


async def test_the_decisions_coordinator_is_named_where_the_head_does(
    world: Callable[..., World],
) -> None:
    """Of an earlier term nobody is."""
    w = world(term=1)
    w.joining.look()
    await w.until(S.IDLE)
    assert w.taken[0][2] == "c"
    await w.joining.close()


@pytest.mark.parametrize(
    ("plan", "own", "state"),
    [
        pytest.param({"suspend": True}, None, S.RESTING, id="suspended: nobody joins"),
        pytest.param({"join_policy": "NextVersion"}, None, S.RESTING, id="a new one waits for the next version"),
        pytest.param({"join_policy": "NextVersion"}, decided(), S.IDLE, id="one that had a version gets it back"),
        pytest.param({"transfer": Transfer(protocol="TCP")}, None, S.IDLE, id="readers take TCP, as they should"),
        pytest.param({"transfer": Transfer(protocol="RDMA")}, None, S.RESTING, id="no byte may take TCP: no reader"),
    ],
)
async def test_what_the_weightsync_says_of_joins(
    world: Callable[..., World], plan: dict[str, Any], own: Decided | None, state: S
) -> None:
    """suspend, joinPolicy and transfer.protocol hold for what engines do by themselves, too."""
    w = world(**plan)
    w.needs = j.Needs(own, sealed=False)
    w.joining.look()
    await w.until(state)
    assert bool(w.taken) is (state is S.IDLE)
    await w.joining.close()


async def test_a_join_goes_on_without_the_coordinator(world: Callable[..., World]) -> None:
    """It is gone: what engines hold counts. One at whose address another pod is now is not believed."""
    w = world()
    del w.client.answers["c:1/v1/held"]
    w.client.answers["h:1/v1/held"] = lambda body: Held(uid="another", decided=decided(9), most=2)
    w.joining.look()
    await w.until(S.IDLE)
    assert w.pulls == ["i"]
    await w.joining.close()


@pytest.mark.parametrize(
    ("readers", "coordinator", "asked"),
    [
        pytest.param(0, True, AT_ONCE, id="the first few have a free place: nobody else is asked"),
        pytest.param(2, True, 20, id="all are busy"),
        pytest.param(0, False, 20, id="nobody says what was decided last: it takes many to tell"),
    ],
)
async def test_engines_are_asked_a_few_at_a_time(
    world: Callable[..., World], readers: int, coordinator: bool, asked: int
) -> None:
    """Hundreds may join at once, and each of them would ask dozens."""
    holders = [f"h{n}" for n in range(20)]
    w = world(holders=holders)
    for uid in holders:
        w.client.answers[f"{uid}:1/v1/held"] = lambda body, uid=uid: Held(
            uid=uid, decided=decided(), readers=readers, most=2
        )
    if not coordinator:
        del w.client.answers["c:1/v1/held"]
    w.joining.look()
    await w.until(S.IDLE)
    assert sum(each.endswith("/v1/held") and each[0] == "h" for each in w.client.asked) == asked
    await w.joining.close()


async def test_an_engine_that_others_read_from_in_a_sync_is_read_last(world: Callable[..., World]) -> None:
    """As the coordinator knows."""
    holders = ("h", "i", "k")
    w = world(holders=holders)
    w.client.answers["c:1/v1/held"] = lambda body: Held(uid="c", decided=decided(), feeders=("h", "k"))
    w.joining.look()
    await w.until(S.IDLE)
    assert w.pulls == ["i"]
    await w.joining.close()


async def test_one_that_waits_for_a_place_learns_who_came_since(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who came with it is in a later plan than its own first one, and lends what it reads."""
    monkeypatch.setattr(j, "BUSY_SECONDS", 0.02)
    w = world(holders=("h", "late"))
    w.client.answers["h:1/v1/held"] = lambda body: Held(uid="h", decided=decided(), readers=2, most=2)

    def full(body: Any) -> Lease:
        raise Refused("two read", reason="Busy", status=503)

    w.client.answers["h:1/v1/leases"] = full
    w.client.answers["late:1/v1/held"] = lambda body: Held(uid="late", grows=decided(), behind=1, most=2)
    all_of_them = w.plan.engines
    w.plan = SimpleNamespace(**(vars(w.plan) | {"engines": all_of_them[:1]}))
    w.joining.look()
    await w.until(S.RESTING)
    w.plan = SimpleNamespace(**(vars(w.plan) | {"engines": all_of_them}))
    async with asyncio.timeout(5):
        while w.joining.machine.waits < 3:  # noqa: ASYNC110 - a machine has no event
            await asyncio.sleep(0.002)
    assert not any(asked.startswith("late") for asked in w.client.asked)
    monkeypatch.setattr(neighbours, "BUSY_SECONDS", 0.0)
    await w.until(S.IDLE)
    assert w.pulls == ["late"]
    await w.joining.close()


async def test_one_that_waits_for_a_place_asks_again_by_itself(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the engine is looked at next. Here a sync begins, and has begun when it asks again."""
    monkeypatch.setattr(j, "BUSY_SECONDS", 0.02)
    w = world()
    begins = iter((True, True, False))
    w.client.answers["c:1/v1/held"] = lambda body: Held(uid="c", decided=decided(), begins=next(begins))
    w.joining.look()
    await w.until(S.IDLE)
    assert w.client.asked.count("c:1/v1/held") == 3
    assert len(w.pulls) == 1
    await w.joining.close()


async def test_the_next_holder_is_read_where_one_breaks(world: Callable[..., World]) -> None:
    """Both were asked once."""
    w = world()
    broken: list[str] = []

    async def breaks() -> None:
        if not broken:
            broken.append(w.pulls[-1])
            raise TransferError("stalled")

    w.pull = breaks
    w.joining.look()
    await w.until(S.IDLE)
    assert sorted(w.pulls) == ["h", "i"]
    await w.joining.close()


async def test_a_holder_that_says_it_is_gone_is_left(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must fill its arena: its reader hears it with the next word, and reads from another."""
    w = world()
    w.pull = asyncio.Event().wait
    said: list[str] = []

    def lent(uid: str) -> Lease:
        said.append(uid)
        if said.count(uid) > 1:
            w.pull = None
            raise Refused("not held here", reason="NotHeld", status=404)
        return w.lease(uid).model_copy(update={"seconds": 0.03})

    for uid in "hi":
        w.client.answers[f"{uid}:1/v1/leases"] = lambda body, uid=uid: lent(uid)
    w.joining.look()
    await w.until(S.IDLE)
    assert sorted(w.pulls) == ["h", "i"]
    await w.joining.close()


async def test_the_end_waits_for_what_reads(world: Callable[..., World]) -> None:
    """A sync fills the arenas next: when end() returns, the pull's own end is through."""
    w = world()
    ended = asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.03)
            ended.set()

    w.pull = slow_to_end
    w.joining.look()
    await w.until(S.PULLING)
    await asyncio.sleep(0.01)
    w.needs = j.NeedsNothing("a sync")
    await w.joining.end("a sync begins")
    assert ended.is_set()
    assert (w.joining.machine.state, w.joining.hopes) == (S.IDLE, False)
    await w.joining.close()


async def test_a_bug_does_not_leave_the_engine_hoping(world: Callable[..., World]) -> None:
    """The coordinator would wait for it for ever."""
    w = world()

    async def bug() -> None:
        raise KeyError("x")

    w.pull = bug
    w.joining.look()
    await w.until(S.RESTING)
    assert not w.joining.hopes
    await w.joining.close()


async def test_versions_of_a_term_after_the_plans_are_not_taken(world: Callable[..., World]) -> None:
    """The plan is read anew then: another coordinates since."""
    w = world(term=0)
    w.joining.look()
    await w.until(S.RESTING)
    assert w.taken == []
    await w.joining.close()


async def test_what_was_given_up_says_nothing_to_what_runs_by_then(world: Callable[..., World]) -> None:
    """A failure of its own hid that it was cancelled: the join that begins meanwhile goes on."""
    w = world()
    reading = w.joining._neighbours._read

    async def hides() -> Any:
        w.joining._neighbours._read = reading
        try:
            await asyncio.Event().wait()
        finally:
            raise PeerError("the connection broke at that very moment")

    w.joining._neighbours._read = hides
    w.joining.look()
    await asyncio.sleep(0.01)
    w.joining._feed(j.NeedsNothing("a sync begins"))
    w.joining.look()
    await w.until(S.IDLE, S.RESTING)
    assert (w.joining.machine.state, len(w.taken)) == (S.IDLE, 1)
    await w.joining.close()
