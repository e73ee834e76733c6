"""What an engine lends: what it has, what it reads itself, and to whom."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.agent.drivers.test_pull import BUCKETS, REGION, World
from tests.unit.agent.drivers.test_rank_target import OURS, Workers, target, until
from weightsync.errors import Refused
from weightsync.wire.v1 import Lease, LeaseEnd, LeaseRequest, MoreRequest
from weightsync_agent.drivers.holding import Holding


class Holder(World):
    """One rank that reads from another engine, three engines behind one that has all, and lends."""

    def __init__(self, folder: Path) -> None:
        super().__init__(target(folder, Workers()))
        ranks: Any = SimpleNamespace(targets={0: self.rank}, remote={})
        self.reads: Lease | None = None
        self.holding = Holding("me", ranks, lambda: None, lambda: self.reads)

    def request(self, **more: Any) -> LeaseRequest:
        programs = {0: self.rank.program.digest}
        version = self.lease().decided.version
        return LeaseRequest(**{"reader": "r", "version": version, "programs": programs, "ours": OURS, "waits": True,
                               **more})  # fmt: skip


@pytest.fixture
async def holder(tmp_path: Path) -> AsyncIterator[Holder]:
    holder = Holder(tmp_path)
    await holder.rank.open()
    yield holder
    await holder.rank.close()


async def test_what_it_reads_itself_is_lent_as_it_comes(holder: Holder) -> None:
    """With the digests of all that comes, and to those who wait for it alone; before it reads nothing is."""
    holder.reads = holder.lease().model_copy(update={"behind": 3})
    assert holder.holding.held().grows is None
    holder.next.hangs = {8}
    reading = asyncio.create_task(holder.pull())
    machine = holder.rank.arenas[0].machine
    await until(lambda: len(machine.verified) == 1)
    held = holder.holding.held()
    assert (held.decided, held.grows, held.behind, held.most) == (None, holder.reads.decided, 4, 2)
    with pytest.raises(Refused) as older:  # an agent of an older release reads all at once
        await holder.holding.lease(holder.request(waits=False))
    assert older.value.reason == "NotHeld"
    lease = await holder.holding.lease(holder.request())
    [rank] = lease.ranks
    assert (lease.behind, lease.decided, rank.buckets) == (4, holder.reads.decided, BUCKETS)
    assert (rank.grant, rank.region) == (machine.grows(lease.decided.version), holder.rank.arenas[0].region)
    more = MoreRequest(reader="r", rank=0, grant=rank.grant, after=0, ours=OURS)
    assert (await holder.holding.more(more)).buckets == BUCKETS[:1]
    reading.cancel()
    await asyncio.wait({reading})
    assert holder.holding.held().grows is None
    with pytest.raises(Refused) as over:
        await holder.holding.lease(holder.request())
    assert over.value.reason == "NotHeld"


@pytest.mark.parametrize("change", [{"reader": "another"}, {"rank": 1}], ids=["not its reader", "no such rank"])
async def test_only_who_has_a_lease_learns_what_is_there(holder: Holder, change: dict[str, Any]) -> None:
    """Whose lease has ended reads no more."""
    holder.reads = holder.lease()
    holder.next.hangs = {8}
    reading = asyncio.create_task(holder.pull())
    await until(lambda: len(holder.rank.arenas[0].machine.verified) == 1)
    [rank] = (await holder.holding.lease(holder.request())).ranks
    more = MoreRequest(reader="r", rank=0, grant=rank.grant, after=0, ours=OURS)
    with pytest.raises(Refused, match="not lent"):
        await holder.holding.more(more.model_copy(update=change))
    await holder.holding.end(LeaseEnd(reader="r"))
    with pytest.raises(Refused, match="not lent"):
        await holder.holding.more(more)
    reading.cancel()
    await asyncio.wait({reading})


async def test_who_reads_a_version_reads_on_when_the_engine_goes_over_to_the_next(holder: Holder) -> None:
    """As long as it lies in an arena; nobody else is lent it any more."""
    both = {number: SimpleNamespace(verified=tuple, region=REGION) for number in (1, 2)}
    held = {1, 2}
    arenas: Any = SimpleNamespace(
        program=holder.rank.program, worker=holder.rank.worker,
        lendable=lambda version: both[version.number] if version.number in held else None,
    )  # fmt: skip
    decided = [holder.lease(1).decided, holder.lease(2).decided]
    serves = [decided[0]]
    ranks: Any = SimpleNamespace(targets={0: arenas}, remote={})
    holding = Holding("me", ranks, lambda: serves[-1])
    assert (await holding.lease(holder.request())).decided == decided[0]
    serves.append(decided[1])
    assert (await holding.lease(holder.request())).decided == decided[0]
    with pytest.raises(Refused) as other:
        await holding.lease(holder.request(reader="other"))
    assert other.value.reason == "NotHeld"
    assert (await holding.lease(holder.request(reader="other", version=decided[1].version))).decided == decided[1]
    held.discard(1)
    with pytest.raises(Refused):
        await holding.lease(holder.request())
    held.add(1)
    with pytest.raises(Refused):
        await holding.lease(holder.request())


async def test_where_it_was_another_version_that_it_reads_it_lends_nothing(holder: Holder) -> None:
    """A lease that it has is of one version."""
    holder.reads = holder.lease(2)
    await holder.pull()
    assert holder.holding.held().grows is None
    with pytest.raises(Refused):
        await holder.holding.lease(holder.request())


async def test_who_finds_no_place_costs_no_more_than_a_look(holder: Holder) -> None:
    """What could be read are thousands of digests: of many that ask most have no place."""
    asked: list[str] = []

    def verified() -> tuple[()]:
        asked.append("verified")
        return ()

    class Target(SimpleNamespace):
        def lendable(self, version: Any) -> Any:
            return SimpleNamespace(verified=verified, region=REGION)

    target: Any = Target(program=holder.rank.program, worker=holder.rank.worker)
    ranks: Any = SimpleNamespace(targets={0: target}, remote={})
    holding = Holding("me", ranks, lambda: holder.lease().decided)
    for reader in ("a", "b"):
        await holding.lease(holder.request(reader=reader))
    assert len(asked) == 2
    with pytest.raises(Refused) as full:
        await holding.lease(holder.request(reader="c"))
    assert (full.value.reason, len(asked)) == ("Busy", 2)


async def test_a_place_that_cannot_be_used_is_free_again(holder: Holder) -> None:
    """Its reader is of another release, say: others must not wait until its lease is over."""
    arena = SimpleNamespace(verified=tuple, region=REGION)
    target: Any = SimpleNamespace(
        program=holder.rank.program, worker=holder.rank.worker, lendable=lambda version: arena
    )
    ranks: Any = SimpleNamespace(targets={0: target}, remote={})
    holding = Holding("me", ranks, lambda: holder.lease().decided)
    for reader in ("a", "b", "c"):
        with pytest.raises(Refused) as other:
            await holding.lease(holder.request(reader=reader, ours=OURS.model_copy(update={"transport": "rdma"})))
        assert other.value.reason == "CapabilityMismatch"
    assert holding.held().readers == 0
