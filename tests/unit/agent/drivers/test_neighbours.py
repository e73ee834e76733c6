"""Whom a joining engine asks, and how often it reads the plan that names them."""

import copy
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from weightsync.errors import PeerError
from weightsync.version import Version
from weightsync.wire.v1 import Decided, Held
from weightsync_agent.drivers import neighbours
from weightsync_agent.drivers.neighbours import BUSY_SECONDS, PLAN_SECONDS, Neighbours
from weightsync_agent.peers.client import Unreachable

PROGRAM = "2" * 32


class World:
    """A plan of term 3 with a coordinator and an engine; virtual time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.reads, self.asked = 1000.0, 0, list[str]()
        rank = SimpleNamespace(rank=0, program=PROGRAM)
        engine = SimpleNamespace(
            leader="h", address="h:1", mode="Staged", targets=[SimpleNamespace(uid="h", rank=rank)]
        )
        self.plan: Any = SimpleNamespace(term=3, coordinator="c", engines=[engine], source=self._source)
        self.error: PeerError | None = None
        self.coordinator: Held | None = None  # what it answers; None: it is silent
        self.engine = Held(uid="h")
        client: Any = SimpleNamespace(call=self._call)
        monkeypatch.setattr(neighbours.time, "monotonic", lambda: self.now)
        self.found = Neighbours("me/1", self._read, client, believed=True)

    @staticmethod
    def _source(uid: str) -> Any:
        return SimpleNamespace(address="c:1")

    async def _read(self) -> Any:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return copy.copy(self.plan)

    async def _call(self, address: str, path: str, kind: type, *, seconds: float) -> Held:
        self.asked.append(f"{address}{path}")
        answer = self.engine if address == "h:1" else self.coordinator
        if answer is None:
            raise Unreachable(f"{address} is not there")
        return answer

    async def seek(self, *, busy: bool = False) -> Any:
        """As a join does."""
        plan = await self.found.plan(busy=busy)
        await self.found.told(plan)
        await self.found.offers(plan, {0: PROGRAM}, None)
        return plan


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def of_term(term: int) -> Decided:
    return Decided(version=Version(lineage="1" * 16, number=1, root="4" * 64), term=term)


@pytest.mark.parametrize(
    ("coordinator", "engine"),
    [
        pytest.param(None, Held(uid="h"), id="the coordinator is silent"),
        pytest.param(Held(uid="c", decided=of_term(4)), Held(uid="h"), id="it tells of a later term"),
        pytest.param(Held(uid="c"), Held(uid="h", decided=of_term(4)), id="an engine does"),
    ],
)
async def test_a_plan_that_seems_stale_serves_until_it_is_time_to_read_another(
    world: World, coordinator: Held | None, engine: Held
) -> None:
    """A thousand joiners that each list anew with every look would be the API server's end."""
    world.coordinator, world.engine = coordinator, engine
    first = await world.seek()
    while world.now < 1000.0 + BUSY_SECONDS:
        assert await world.seek() is first
        world.now += 0.5
    assert world.reads == 1
    world.now = 1000.0 + 2 * BUSY_SECONDS
    await world.seek()
    assert world.reads == 2


async def test_a_plan_that_stays_what_it_is_is_read_ever_less_often(world: World) -> None:
    """The trainer may be gone for hours while engines come; but never less often than without a reason."""
    times = []
    for _ in range(400):
        before = world.reads
        await world.seek()
        times += [world.now] * (world.reads - before)
        world.now += 0.5
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert BUSY_SECONDS <= pauses[0] <= 2 * BUSY_SECONDS + 0.5
    assert pauses[-1] == pytest.approx(PLAN_SECONDS, abs=0.5)
    assert len(times) < 11
    world.plan.coordinator = "d"
    world.now += PLAN_SECONDS
    await world.seek()
    read = world.reads
    world.now += 2 * BUSY_SECONDS + 0.5
    await world.seek()
    assert world.reads == read + 1


async def test_two_engines_do_not_read_in_step(world: World) -> None:
    """They came at the same moment, and would for ever list at the same moment."""
    pauses = set()
    for uid in ("a", "b", "c"):
        world.found = Neighbours(uid, world._read, world.found._client, believed=True)
        await world.seek()
        pauses.add(world.found._kept(soon=True))
    assert len(pauses) == 3


async def test_a_plan_without_a_doubt_serves_long(world: World) -> None:
    """A fresh fleet asks for hours. Who waits for a place reads it sooner: others came since."""
    world.coordinator = Held(uid="c")
    await world.seek()
    world.now += 2 * BUSY_SECONDS + 0.5
    await world.seek()
    assert world.reads == 1
    await world.seek(busy=True)
    assert world.reads == 2


async def test_a_plan_serves_on_while_no_newer_one_can_be_read(world: World) -> None:
    """An API server that is away makes nobody's join a failure, and gets no storm when it comes back."""
    plan = await world.seek()
    world.error = PeerError("no API server")
    world.now += 2 * BUSY_SECONDS
    assert await world.seek(busy=True) is plan
    assert await world.seek(busy=True) is plan
    assert world.reads == 2
    fresh = Neighbours("me", world._read, world.found._client, believed=True)
    with pytest.raises(PeerError):
        await fresh.plan()


async def test_the_coordinator_learns_who_asks(world: World) -> None:
    """It tells each joiner of other engines; where all have one token it could not know who asks."""
    await world.seek()
    assert world.asked[0] == "c:1/v1/held?reader=me%2F1"
