"""Reading a holder's arenas: what is verified counts, and however it ends nobody of ours reads on."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.agent.drivers.test_rank_target import OURS, Workers, ask, target, until
from weightsync.digests import BucketDigest, program_root, version_root
from weightsync.errors import Refused, TransferError, WeightSyncError
from weightsync.version import Version
from weightsync.wire.v1 import Decided, HeldRank, Lease, MoreRequest, PassAnswer, Region
from weightsync_agent.drivers import reading
from weightsync_agent.drivers.pull import Pulling, pull
from weightsync_agent.drivers.rank_target import RankTarget
from weightsync_agent.protocol.fence import Fence
from weightsync_agent.protocol.target import TargetState

LINEAGE = "3" * 16
BUCKETS = tuple(BucketDigest(offset=at, nbytes=8, digest=f"{at:032x}") for at in (0, 8))
REGION = Region(session="holder", address=64, nbytes=16)
OTHER = Region(session="another", address=64, nbytes=16)
WRONG = BucketDigest(offset=8, nbytes=8, digest="9" * 32)
GRANT = "a" * 32


class Reader:
    """A reading worker in memory. hangs, fails: offsets; spoils: offsets whose digest is another's."""

    def __init__(self) -> None:
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.fetched: list[int] = []
        self.bytes = 0
        self.hangs: set[int] = set()
        self.fails: set[int] = set()
        self.spoils: set[int] = set()
        self.capabilities = OURS
        self.killed = asyncio.Event()
        self.slow = False  # to end, once it is killed: that is the test's to say

    async def attach(self, path: Path) -> Region:
        return Region(session="reader", address=1, nbytes=16)

    async def meet(self, region: Region, *, deadline_seconds: float) -> None: ...

    async def fetch(self, path: Path, offset: int, nbytes: int, of: Region, *, seconds: float) -> None:
        self.fetched.append(offset)
        self.bytes += nbytes
        if offset in self.hangs:
            await asyncio.Event().wait()
        if offset in self.fails:
            raise TransferError("no answer", reason="Stalled")

    async def digest(self, path: Path, buckets: list[Any]) -> list[BucketDigest]:
        return [
            BucketDigest(offset=b.offset, nbytes=b.nbytes, digest=f"{b.offset + (b.offset in self.spoils):032x}")
            for b in buckets
        ]

    def kill(self) -> None:
        self.killed.set()
        if not self.slow:
            self.end()

    def end(self) -> None:
        if not self.dead.done():
            self.dead.set_result("killed")


class World:
    """One rank and its reader."""

    def __init__(self, rank: RankTarget) -> None:
        self.rank = rank
        self.readers: list[Reader] = []
        self.next = Reader()
        self.grant = ""  # under which the holder reads it itself
        self.answers: asyncio.Queue[PassAnswer | Refused] = asyncio.Queue()  # of such a holder
        self.asked: list[MoreRequest] = []

    async def start(self, name: str, rank: int, ranks: Any) -> Any:
        self.readers.append(self.next)
        self.next = Reader()
        return self.readers[-1]

    def lease(self, number: int = 1) -> Lease:
        program = self.rank.program.digest
        roots = {program: program_root(BUCKETS)}
        version = Version(lineage=LINEAGE, number=number, root=version_root(LINEAGE, number, roots))
        held = HeldRank(rank=0, program=program, region=REGION, buckets=BUCKETS, grant=self.grant)
        decided = Decided(version=version, term=1, programs=roots)
        return Lease(uid="h", decided=decided, seconds=9.0, ranks=(held,))

    async def more(self, request: MoreRequest) -> PassAnswer:
        self.asked.append(request)
        answer = await self.answers.get()
        if isinstance(answer, Refused):
            raise answer
        return answer

    def grown(self, *buckets: BucketDigest, region: Region = REGION) -> None:
        """The holder has verified more."""
        self.answers.put_nowait(PassAnswer(region=region, buckets=buckets))

    async def pull(self, number: int = 1, *, fence: bool = False, deadline: float = 30.0) -> None:
        ranks: Any = SimpleNamespace(targets={0: self.rank})
        how = Pulling("me", self.start, self.more, stall=1.0, deadline=deadline, fence=fence)
        await pull(ranks, self.lease(number), how)

    @property
    def state(self) -> TargetState:
        return self.rank.arenas[0].machine.state


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    rank = target(tmp_path, Workers())
    await rank.open()
    yield World(rank)
    await rank.close()


async def test_all_that_was_read_is_verified_and_the_reader_has_ended(world: World) -> None:
    """The arena is quiet and not sealed yet; the version lies in it under one grant."""
    await world.pull()
    [reader] = world.readers
    assert sorted(reader.fetched) == [0, 8]
    assert reader.dead.done()
    assert world.state is TargetState.FILLING
    version = world.lease().decided.version
    assert world.rank.grant_of(version) == world.rank.arenas[0].arena.header.grant
    assert world.rank.lendable(version) is None
    assert world.rank.written_since is None


async def test_a_holder_that_reads_it_itself_is_read_as_it_goes_on(world: World) -> None:
    """No bucket before it was told to be there; each is asked for once, beyond those that are known."""
    world.grant = GRANT
    reader = world.next
    pulling = asyncio.create_task(world.pull())
    await until(lambda: len(world.asked) == 1)
    assert reader.fetched == []
    world.grown(BUCKETS[1])
    await until(lambda: len(world.asked) == 2)
    await until(lambda: reader.fetched == [8])
    world.grown()  # nothing new for a while
    world.grown(BUCKETS[0])
    await pulling
    assert [(each.grant, each.reader, each.after) for each in world.asked] == [(GRANT, "me", n) for n in (0, 1, 1)]
    assert reader.fetched == [8, 0]
    assert world.rank.grant_of(world.lease().decided.version)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(Refused("reads no more", reason="NotHeld", status=404), "reads no more", id="it got no more"),
        pytest.param(PassAnswer(region=OTHER), "replaced its worker", id="its worker died: what is known is gone"),
        pytest.param(PassAnswer(region=REGION, buckets=(WRONG,)), "not of the decided version", id="other bytes"),
    ],
)
async def test_a_holder_that_gets_no_more_breaks_it(world: World, answer: PassAnswer | Refused, words: str) -> None:
    """What had come still counts: of the next holder only the rest is read."""
    world.grant = GRANT
    world.grown(BUCKETS[0])
    reader = world.next
    pulling = asyncio.create_task(world.pull())
    await until(lambda: len(world.asked) == 2 and len(world.rank.arenas[0].machine.verified) == 1)
    world.answers.put_nowait(answer)
    with pytest.raises(WeightSyncError, match=words):
        await pulling
    assert reader.dead.done()
    world.grant = ""
    await world.pull()
    assert world.readers[1].fetched == [8]


async def test_a_holder_that_reads_itself_is_not_waited_for_without_an_end(world: World) -> None:
    """It goes on telling of something, slower than any other would; what has come counts."""
    world.grant = GRANT
    world.grown(BUCKETS[0])
    reader = world.next
    with pytest.raises(TransferError, match="another engine may be faster"):
        await world.pull(deadline=0.3)
    assert (reader.fetched, reader.dead.done()) == ([0], True)
    world.grant = ""
    await world.pull(deadline=0.3)
    assert world.readers[1].fetched == [8]


async def test_what_is_read_is_lent_as_it_comes_and_no_longer_than_it_comes(world: World) -> None:
    """Whoever waits for more learns at once that none comes; under the next grant what is verified is there again."""
    world.next.hangs = {8}
    pulling = asyncio.create_task(world.pull())
    machine = world.rank.arenas[0].machine
    await until(lambda: len(machine.verified) == 1)
    version = world.lease().decided.version
    assert world.rank.growing(version) is world.rank.arenas[0]
    request = MoreRequest(reader="you", rank=0, grant=machine.grows(version), after=0, wait=5.0, ours=OURS)
    assert (await world.rank.grown(request)).buckets == BUCKETS[:1]
    waiting = asyncio.create_task(world.rank.grown(request.model_copy(update={"after": 1})))
    await asyncio.sleep(0.01)
    pulling.cancel()
    async with asyncio.timeout(1.0):
        with pytest.raises(Refused, match="reads no more"):
            await waiting
    assert (machine.grows(version), world.rank.growing(version)) == ("", None)
    again = asyncio.create_task(world.pull())
    await again
    assert machine.grows(version) not in ("", request.grant)
    with pytest.raises(Refused, match="not open"):
        await world.rank.grown(request)
    all_of_it = request.model_copy(update={"grant": machine.grows(version)})
    assert (await world.rank.grown(all_of_it)).buckets == BUCKETS


async def test_other_bytes_break_it_and_what_was_equal_still_counts(world: World) -> None:
    """The holder's arena was filled anew: the next holder is read for the rest only."""
    world.next.spoils = {8}
    with pytest.raises(TransferError, match="filled anew") as error:
        await world.pull()
    assert error.value.reason == "ArenaChanged"
    assert world.readers[0].dead.done()
    with pytest.raises(Refused, match="does not hold all"):
        world.rank.grant_of(world.lease().decided.version)
    await world.pull()
    assert world.readers[1].fetched == [8]


async def test_a_bucket_is_read_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte once, and two buckets at once: a piece that took a stall timeout would be a stall."""
    monkeypatch.setattr(reading, "PIECE", 3)
    await world.pull()
    [reader] = world.readers
    assert sorted(reader.fetched) == [0, 3, 6, 8, 11, 14]
    assert reader.bytes == 16


async def test_a_holder_that_stalls_breaks_it(world: World) -> None:
    """And its reader is ended, whose read may still come in."""
    world.next.fails = {0}
    with pytest.raises(TransferError, match="no answer"):
        await world.pull()
    assert world.readers[0].dead.done()
    assert world.state is TargetState.FILLING


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_one_that_is_given_up_ends_its_reader_first_however_often_it_is_told(world: World, times: int) -> None:
    """Told again while it ends the reader, it does not leave the arena to nobody."""
    world.next.hangs, world.next.slow = {0, 8}, True
    reader = world.next
    pulling = asyncio.create_task(world.pull())
    while len(reader.fetched) < 2:  # noqa: ASYNC110 - the fake has no event
        await asyncio.sleep(0)
    for _ in range(times):
        pulling.cancel()
        await asyncio.sleep(0.005)
    assert reader.killed.is_set()
    assert not pulling.done()
    reader.end()
    await asyncio.wait({pulling})
    assert pulling.cancelled()
    assert reader.dead.done()
    assert world.state is TargetState.FILLING
    assert (await world.rank.grant(ask(world.rank, 1), Fence())).grant


async def test_an_arena_that_writers_may_write_to_is_left_alone(world: World) -> None:
    """Unless they were silent for so long that they are fenced: then it is asked for again."""
    await world.rank.grant(ask(world.rank, 1), Fence())
    with pytest.raises(Refused) as refused:
        await world.pull()
    assert refused.value.reason == "Busy"
    assert world.readers == []
    with pytest.raises(Refused) as fenced:
        await world.pull(fence=True)
    assert fenced.value.reason == "Fencing"
    await until(lambda: world.state is not TargetState.FENCING)
    await world.pull(fence=True)
    assert world.state is TargetState.FILLING
