"""Reading what another engine verifies, while it does: passed on at once, kept through other parents, and ended."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.agent.drivers.test_pull import BUCKETS, Reader
from tests.unit.agent.drivers.test_rank_target import OURS, Worker, Workers, ask, target, until
from weightsync.digests import program_root, version_root
from weightsync.errors import Refused
from weightsync.version import Version
from weightsync.wire.v1 import CommitRequest, PassRequest, RankCommit, RelayEnd, RelayOrder, RelayRank
from weightsync_agent.drivers.rank_target import RankTarget
from weightsync_agent.drivers.relaying import Relaying
from weightsync_agent.peers.client import Unreachable
from weightsync_agent.protocol import target as t
from weightsync_agent.protocol.fence import Fence

LINEAGE = "3" * 16


class World:
    """Two parents and a child, of one rank each. away: addresses that do not answer."""

    def __init__(self, parents: dict[str, RankTarget], child: RankTarget) -> None:
        self.parents, self.child = parents, child
        self.readers: list[Reader] = []
        self.next = Reader()
        self.away: set[str] = set()
        self.grants: dict[str, str] = {}
        ranks: Any = SimpleNamespace(targets={0: child})
        client: Any = SimpleNamespace(persist=self.persist)
        self.relaying = Relaying("child", ranks, client, self.start)

    async def start(self, name: str, rank: int, ranks: Any) -> Any:
        self.readers.append(self.next)
        self.next = Reader()
        return self.readers[-1]

    async def persist(self, address: str, path: str, kind: Any, body: PassRequest, *, seconds: float) -> Any:
        assert path == "/v1/passes"
        if address in self.away:
            raise Unreachable(f"{address} did not answer")
        return await self.parents[address].passes(body)

    async def begin(self, number: int = 1) -> None:
        """Everybody grants."""
        for name, rank in {**self.parents, "child": self.child}.items():
            self.grants[name] = (await rank.grant(ask(rank, number), Fence())).grant

    def order(self, parent: str = "a", turn: int = 1, number: int = 1) -> RelayOrder:
        return RelayOrder(
            term=1, coordinator="c", sync=f"s{number}", turn=turn, uid=parent, engine=parent, address=parent,
            ranks=(RelayRank(rank=0, grant=self.grants["child"], parent=self.grants[parent]),),
            deadline_seconds=30.0, stall_seconds=0.2,
        )  # fmt: skip

    def verify(self, parent: str, *buckets: Any) -> None:
        self.parents[parent].arenas[0].handle(t.Landed(self.grants[parent], buckets, buckets))

    async def ended(self, order: RelayOrder) -> RelayEnd:
        """Asked again and again, as a coordinator does."""
        async with asyncio.timeout(10):
            while not (end := await self.relaying.order(order)).ended:
                continue
        return end

    @property
    def state(self) -> t.TargetState:
        return self.child.arenas[0].machine.state

    @property
    def known(self) -> set[int]:
        return set(self.child.arenas[0].machine.verified)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = []
    for name in ("a", "b", "child"):
        (tmp_path / name).mkdir()
        made.append(target(tmp_path / name, Workers()))
        await made[-1].open()
    world = World({"a": made[0], "b": made[1]}, made[2])
    await world.begin()
    yield world
    await world.relaying.close()
    for rank in made:
        await rank.close()


async def test_a_bucket_is_passed_on_as_soon_as_it_is_verified(world: World) -> None:
    """The child reads the first while the parent has no second, and can pass it on itself."""
    world.verify("a", BUCKETS[0])
    assert not (await world.relaying.order(world.order())).ended
    await until(lambda: world.known == {0})
    assert world.state is t.TargetState.PULLING
    request = PassRequest(reader="x", term=1, rank=0, grant=world.grants["child"], after=0, ours=OURS)
    assert (await world.child.passes(request)).buckets == BUCKETS[:1]
    world.verify("a", BUCKETS[1])
    end = await world.ended(world.order())
    assert (end.verified, end.nbytes, end.transport) == (True, 16, "tcp")
    assert world.readers[0].dead.done()
    assert world.state is t.TargetState.FILLING


async def test_what_was_read_is_sealed_as_what_was_written_is(world: World) -> None:
    """The decided root is compared with what was digested here; another root is refused."""
    world.verify("a", *BUCKETS)
    assert (await world.ended(world.order())).verified
    program = world.child.program.digest

    def commit(root: str) -> CommitRequest:
        version = Version(lineage=LINEAGE, number=1, root=version_root(LINEAGE, 1, {program: root}))
        ranks = (RankCommit(rank=0, grant=world.grants["child"], program=program),)
        return CommitRequest.model_validate({
            "term": 1, "coordinator": "c", "sync": "s1", "version": version, "programs": {program: root},
            "ranks": ranks, "strategy": {},
        })  # fmt: skip

    with pytest.raises(Refused, match="not the decided one"):
        await world.child.seal(commit("5" * 64))
    await world.child.seal(commit(program_root(BUCKETS)))
    assert world.state is t.TargetState.KEPT


async def test_another_parent_is_asked_for_the_rest(world: World) -> None:
    """A parent that does not answer is told of as lost; the next turn reads only what is not verified yet."""
    world.verify("a", BUCKETS[0])
    await world.relaying.order(world.order())
    await until(lambda: world.known == {0})
    world.away.add("a")
    end = await world.ended(world.order())
    assert (end.verified, end.lost, end.reason) == (False, True, "Unreachable")
    assert world.readers[0].dead.done()
    world.verify("b", *BUCKETS)
    assert (await world.ended(world.order("b", turn=2))).verified
    assert world.readers[1].fetched == [8]


async def test_a_turn_ends_the_one_before(world: World) -> None:
    """Its reader has ended before the next begins; whoever asks for the earlier one is told that it is over."""
    waiting = asyncio.create_task(world.relaying.order(world.order()))
    await until(lambda: bool(world.readers))
    world.verify("b", *BUCKETS)
    assert (await world.ended(world.order("b", turn=2))).verified
    assert world.readers[0].dead.done()
    with pytest.raises(Refused, match="is over"):
        await waiting
    with pytest.raises(Refused, match="has begun"):
        await world.relaying.order(world.order(turn=1))


@pytest.mark.parametrize(
    ("spoil", "lost"),
    [
        pytest.param(lambda reader: reader.spoils.add(8), True, id="other bytes"),
        pytest.param(lambda reader: reader.fails.add(8), True, id="a read that stalls"),
        pytest.param(lambda reader: (reader.fails.add(8), reader.end()), False, id="our own worker that ended"),
    ],
)
async def test_whose_fault_it_is(world: World, spoil: Any, lost: bool) -> None:
    """The parent's, and another is tried; or our own, and the engine is taken out."""
    spoil(world.next)
    world.verify("a", *BUCKETS)
    end = await world.ended(world.order())
    assert (end.verified, end.lost) == (False, lost)
    assert world.state is t.TargetState.FILLING


async def test_a_parent_that_is_granted_anew_is_lost(world: World) -> None:
    """Its arena gets another version: who waits for more of this one is told at once."""
    waiting = asyncio.create_task(world.ended(world.order()))
    await until(lambda: bool(world.readers))
    rank = world.parents["a"]
    rank.arenas[0].handle(t.LastReceipt(world.grants["a"], "s/0", ""))
    await rank.grant(ask(rank, 2), Fence())
    end = await waiting
    assert (end.lost, end.reason) == (True, "GrantClosed")


async def test_a_parent_whose_worker_was_replaced_is_lost(world: World) -> None:
    """Its region is another one."""
    world.verify("a", BUCKETS[0])
    await world.relaying.order(world.order())
    await until(lambda: world.known == {0})
    worker: Any = world.parents["a"].worker
    assert isinstance(worker, Worker)
    worker.kill()
    world.verify("a", BUCKETS[1])
    end = await world.ended(world.order())
    assert (end.verified, end.lost, end.reason) == (False, True, "NoWorker")


async def test_a_grant_ends_it(world: World) -> None:
    """A sync that begins ends the reader first, however slowly that goes; then the arena is free."""
    await world.relaying.order(world.order())
    reader = world.readers[0]
    reader.slow = True
    ending = asyncio.create_task(world.relaying.end("a sync begins"))
    await reader.killed.wait()
    assert world.state is t.TargetState.PULLING
    with pytest.raises(Refused, match="ends its own reader"):
        await world.child.grant(ask(world.child, 2), Fence())
    reader.end()
    await ending
    await world.child.grant(ask(world.child, 2), Fence())
    assert not world.relaying.feeds(60.0)


async def test_a_void_order_changes_nothing(world: World) -> None:
    """One under a grant that is over is refused, and what runs goes on."""
    await world.relaying.order(world.order())
    void = world.order(turn=2).model_copy(
        update={"sync": "s0", "ranks": (RelayRank(rank=0, grant="9" * 32, parent=world.grants["a"]),)}
    )
    with pytest.raises(Refused, match="is not open"):
        await world.relaying.order(void)
    other = world.order(turn=2).model_copy(
        update={"ranks": (RelayRank(rank=1, grant=world.grants["child"], parent=world.grants["a"]),)}
    )
    with pytest.raises(Refused, match="ranks here"):
        await world.relaying.order(other)
    world.verify("a", *BUCKETS)
    assert (await world.ended(world.order())).verified


async def test_whether_a_sync_feeds_it(world: World) -> None:
    """An engine does not look for a version elsewhere while one is read, nor before it can have been committed."""
    assert not world.relaying.feeds(60.0)
    await world.relaying.order(world.order())
    assert world.relaying.feeds(60.0)
    world.verify("a", *BUCKETS)
    await world.ended(world.order())
    assert world.relaying.feeds(60.0)
    assert not world.relaying.feeds(0.0)
    await world.relaying.end("a sync begins")
    assert not world.relaying.feeds(60.0)
