"""A rank's arena and its worker: no failure leaves a rank fencing, or gives out a dead worker's region."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.errors import InputError, Refused, TransferError
from weightsync.layout import lay_out
from weightsync.plan import Rdma
from weightsync.version import Version
from weightsync.wire.v1 import Capabilities, GrantRequest, Receipts, Region, WriterId
from weightsync_agent.devices.route import Side
from weightsync_agent.drivers import receivers
from weightsync_agent.drivers.rank_target import RankTarget
from weightsync_agent.protocol.fence import Fence
from weightsync_agent.protocol.target import RankArena, Recovered, TargetState, choose
from weightsync_agent.transfer.settings import OWN, Carrier

OURS = Capabilities(mooncake="1", transport="tcp")


class Worker:
    """In memory; its region's session is its number."""

    def __init__(self, number: int, broken: Exception | None, carrier: Carrier) -> None:
        self.number, self.broken, self.carrier = number, broken, carrier
        self.capabilities = Capabilities(mooncake="1", transport=carrier.transport or "tcp")
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.attached: list[Path] = []
        self.open = asyncio.Event()  # until it is set, registering lasts
        self.open.set()

    async def attach(self, path: Path) -> Region:
        if self.broken is not None:
            raise self.broken
        await self.open.wait()
        self.attached.append(path)
        return Region(session=str(self.number), address=len(self.attached), nbytes=16)

    def kill(self) -> None:
        if not self.dead.done():
            self.dead.set_result("killed")

    async def close(self) -> None:
        self.kill()


class Workers:
    """Starts them. broken: number -> what that worker's attach raises."""

    def __init__(self) -> None:
        self.all: list[Worker] = []
        self.broken: dict[int, Exception] = {}
        self.slow: set[int] = set()

    async def start(self, name: str, carrier: Carrier = OWN) -> Any:
        self.all.append(Worker(len(self.all), self.broken.get(len(self.all)), carrier))
        if len(self.all) - 1 in self.slow:
            self.all[-1].open.clear()
        return self.all[-1]


def target(folder: Path, workers: Workers, arenas: int = 1, served: Version | None = None) -> RankTarget:
    piece = Piece(box=((0, 4),), offset=0, strides=(4,), dtype="float32")
    tensor = TensorCopies(name="w", dtype="float32", shape=(4,), pieces=(piece,))
    program = CopyProgram(rank=0, layout=lay_out([("w", "float32", (4,))]), tensors=(tensor,))
    return RankTarget(program, folder, workers.start, arenas=arenas, served=lambda: served)


def ask(of: RankTarget, number: int) -> GrantRequest:
    return GrantRequest(
        term=1, coordinator="c", sync=f"s{number}", rank=0, layout=of.program.layout.digest,
        program=of.program.digest, lineage="3" * 16, number=number, writers=(WriterId(uid="s", rank=0),), ours=OURS,
    )  # fmt: skip


def inodes(folder: Path) -> list[int]:
    return [path.stat().st_ino for path in folder.iterdir()]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - what is waited for is the rank's state, which has no event
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "error", [TransferError("x"), InputError("x"), OSError("x"), KeyError("x")],
    ids=["the transfer's", "the arena's", "the system's", "a bug"],
)  # fmt: skip
async def test_a_failed_fence_ends_and_the_next_asker_gets_a_living_region(tmp_path: Path, error: Exception) -> None:
    """Whatever kept the new worker from the arena: it is ended, and the next grant names a third worker's region."""
    workers = Workers()
    workers.broken = {1: error}
    rank = target(tmp_path, workers)
    await rank.open()
    assert (await rank.grant(ask(rank, 1), Fence())).region.session == "0"
    with pytest.raises(Refused, match="ask again"):
        await rank.grant(ask(rank, 2), Fence())
    await until(lambda: rank.arenas[0].machine.state is TargetState.EMPTY)
    assert all(worker.dead.done() for worker in workers.all)
    assert (await rank.grant(ask(rank, 2), Fence())).region.session == "2"
    await rank.close()


async def test_an_arena_whose_registration_failed_can_be_taken_over(tmp_path: Path) -> None:
    """Its lock is dropped and its worker ended, so that the next try uses the very same file."""
    workers = Workers()
    workers.broken = {0: TransferError("x")}
    with pytest.raises(TransferError):
        await target(tmp_path, workers).open()
    assert workers.all[0].dead.done()
    before = inodes(tmp_path)
    rank = target(tmp_path, workers)
    await rank.open()
    assert inodes(tmp_path) == before
    await rank.close()


async def test_a_volume_without_room_is_met_again_until_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of a first try is there, and its pages are not: who writes to such a one is ended by the kernel."""
    full = True

    def allocate(descriptor: int, offset: int, length: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.pwrite(descriptor, bytes(length), offset)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    monkeypatch.setattr("weightsync.arena.populate", lambda *_: None)
    monkeypatch.setattr("weightsync.arena.collapse", lambda *_: None)
    for _ in range(2):
        with pytest.raises(InputError, match="no room"):
            await target(tmp_path, Workers()).open()
    full = False
    rank = target(tmp_path, Workers())
    await rank.open()
    assert rank.arenas[0].arena.allocated
    await rank.close()


V1, V2 = (Version(lineage="3" * 16, number=n, root="4" * 64) for n in (1, 2))


async def test_with_two_arenas_the_served_version_stays_while_the_next_is_written(tmp_path: Path) -> None:
    """Each grant is for the other arena, whichever the engine serves; both are registered in the one worker."""
    workers = Workers()
    rank = target(tmp_path, workers, arenas=2, served=V1)
    await rank.open()
    assert len(workers.all[0].attached) == 2
    first, second = rank.arenas
    first.arena.seal("a" * 32, V1)
    first.handle(Recovered(V1, "a" * 32, rank.program.digest, ()))
    given = await rank.grant(ask(rank, 2), Fence())
    assert given.region.address == 2
    assert rank.holding(V1) is first
    assert rank.granted(given.grant) is second
    await rank.close()


async def test_a_fence_of_one_arena_registers_both_in_the_next_worker(tmp_path: Path) -> None:
    """The grant that must be fenced is fenced before any other is given, and the served arena is registered anew."""
    workers = Workers()
    rank = target(tmp_path, workers, arenas=2, served=V1)
    await rank.open()
    rank.arenas[0].handle(Recovered(V1, "a" * 32, rank.program.digest, ()))
    await rank.grant(ask(rank, 2), Fence())
    for _ in range(2):
        with pytest.raises(Refused, match="ask again"):
            await rank.grant(ask(rank, 3), Fence())
    await until(lambda: rank.arenas[1].machine.state is TargetState.EMPTY)
    given = await rank.grant(ask(rank, 3), Fence())
    assert (given.region.session, given.region.address) == ("1", 2)
    assert len(workers.all[1].attached) == 2
    assert rank.arenas[0].machine.state is TargetState.SEALED
    await rank.close()


_S = TargetState


@pytest.mark.parametrize(
    ("arenas", "served", "chosen"),
    [
        ([RankArena(_S.SEALED, V1)], V1, 0),
        ([RankArena(_S.SEALED, V1), RankArena(_S.EMPTY)], V1, 1),
        ([RankArena(_S.SEALED, V1), RankArena(_S.SEALED, V2)], V1, 1),
        ([RankArena(_S.SEALED, V1), RankArena(_S.SEALED, V2)], V2, 0),
        ([RankArena(_S.SEALED, V2), RankArena(_S.SEALED, V1)], None, 1),
        ([RankArena(_S.EMPTY), RankArena(_S.FILLING)], V1, 1),
        ([RankArena(_S.EMPTY), RankArena(_S.FENCING)], V1, 1),
        ([RankArena(_S.KEPT, V2), RankArena(_S.SEALED, V1)], V1, 1),
    ],
    ids=[
        "the only one", "an empty one", "the one that is not served", "the older one", "a torn engine's older one",
        "the one that is being filled", "the one that is being fenced", "never the one that is applied",
    ],
)  # fmt: skip
def test_which_arena_the_next_grant_is_for(arenas: list[RankArena], served: Version | None, chosen: int) -> None:
    """No two of a rank are filled at once, and what the engine serves is the last to go."""
    assert choose(arenas, served) == chosen


async def test_a_grant_that_waited_while_another_term_began_is_refused(tmp_path: Path) -> None:
    """The handshake waits for a worker; the coordinator that asked is deposed meanwhile."""
    rank, fence = target(tmp_path, Workers()), Fence(1, "c")
    await rank.open()
    await rank._lock.acquire()
    waiting = asyncio.create_task(rank.grant(ask(rank, 1), fence))
    await asyncio.sleep(0)
    fence.raise_to(2, "d")
    rank._lock.release()
    with pytest.raises(Refused) as caught:
        await waiting
    assert caught.value.reason == "StaleTerm"
    assert rank.arenas[0].machine.state is TargetState.EMPTY
    await rank.close()


BOTH = (WriterId(uid="with", rank=0), WriterId(uid="without", rank=0))


def ask_both(of: RankTarget, number: int, **changes: Any) -> GrantRequest:
    """Two stages' writers, of which one has a device."""
    given = {"writers": BOTH, "devices": {"with": ("rxe0",)}, **changes}
    return ask(of, number).model_copy(update=given)


def rdma_target(folder: Path, workers: Workers) -> RankTarget:
    """One whose pod has a device."""
    made = target(folder, workers)
    made._side = Side("rollout-0", ("rxe0",))
    return made


async def test_each_route_has_its_own_transport(tmp_path: Path) -> None:
    """Each writer gets the region of the process that takes its transport; why one takes TCP is said."""
    workers = Workers()
    of = rdma_target(tmp_path, workers)
    await of.open()
    given = await of.grant(ask_both(of, 1), Fence())
    assert {key: (way.transport, way.region.session) for key, way in given.ways.items()} == {
        "with/0": ("rdma", "1"), "without/0": ("tcp", "0"),
    }  # fmt: skip
    assert "source without has no RDMA device" in given.ways["without/0"].why
    assert given.ways["with/0"].why == ""
    await of.close()
    assert all(worker.dead.done() for worker in workers.all)


async def test_where_rdma_is_wanted_a_writer_without_a_device_is_refused(tmp_path: Path) -> None:
    """Before anything is granted, and no worker is started for it."""
    workers = Workers()
    of = rdma_target(tmp_path, workers)
    await of.open()
    with pytest.raises(Refused, match="source without has no RDMA device") as caught:
        await of.grant(ask_both(of, 1, protocol="RDMA"), Fence())
    assert caught.value.reason == "NoDevice"
    assert (len(workers.all), of.arenas[0].machine.state) == (1, TargetState.EMPTY)
    await of.close()


async def test_the_fence_ends_every_process_that_may_be_written_through(tmp_path: Path) -> None:
    """A late byte over RDMA would land as one over TCP does; the next grant has a new process for each."""
    workers = Workers()
    of = rdma_target(tmp_path, workers)
    await of.open()
    await of.grant(ask_both(of, 1), Fence())
    with pytest.raises(Refused, match="may still write"):
        await of.grant(ask_both(of, 2), Fence())
    await until(lambda: of.arenas[0].machine.state is TargetState.EMPTY)
    assert [worker.dead.done() for worker in workers.all] == [True, True, False]
    given = await of.grant(ask_both(of, 2), Fence())
    assert {way.region.session for way in given.ways.values()} == {"2", "3"}
    await of.close()


async def fails(of: RankTarget, number: int) -> str:
    """A grant whose only writer, over RDMA, ends in a failure; the session that it was to write to."""
    given = await of.grant(ask_both(of, number, writers=BOTH[:1], protocol="RDMA"), Fence())
    await of.receipts(
        Receipts(term=1, grant=given.grant, rank=0, writer=BOTH[0], last=True, failed="Mooncake reports a failure")
    )
    return given.ways["with/0"].region.session


async def test_a_process_that_writes_over_rdma_fail_to_reach_is_replaced(tmp_path: Path) -> None:
    """After its link was down it lives, and nobody reaches it any more. One failure proves nothing."""
    workers = Workers()
    of = rdma_target(tmp_path, workers)
    await of.open()
    assert [await fails(of, number) for number in (1, 2, 3, 4, 5)] == ["1", "1", "2", "2", "3"]
    assert [worker.dead.done() for worker in workers.all] == [False, True, True, False]
    await of.close()


async def test_processes_stay_where_writes_over_tcp_fail(tmp_path: Path) -> None:
    """There it is the writer's connection that is of no use."""
    workers = Workers()
    of = target(tmp_path, workers)
    await of.open()
    for number in (1, 2, 3):
        given = await of.grant(ask(of, number), Fence())
        failed = Receipts(
            term=1, grant=given.grant, rank=0, writer=WriterId(uid="s", rank=0), last=True, failed="reset"
        )
        await of.receipts(failed)
    assert len(workers.all) == 1
    await of.close()


async def test_other_options_take_another_process(tmp_path: Path) -> None:
    """Mooncake reads them when its process starts."""
    workers = Workers()
    of = rdma_target(tmp_path, workers)
    await of.open()
    wish = Rdma(gid_index=1)
    await of.grant(ask_both(of, 1, writers=BOTH[:1], rdma=wish), Fence())
    assert [worker.carrier for worker in workers.all] == [OWN, Carrier("rdma", wish)]
    await of.close()


async def test_a_process_that_starts_slowly_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registering may last longer than the asker waits: nothing is granted meanwhile, and it is started once."""
    monkeypatch.setattr(receivers, "READY_SECONDS", 0.0)
    workers = Workers()
    workers.slow = {1}
    of = rdma_target(tmp_path, workers)
    await of.open()
    with pytest.raises(Refused, match="starts over rdma: ask again") as caught:
        await of.grant(ask_both(of, 1), Fence())
    assert (caught.value.reason, of.arenas[0].machine.state) == ("Fencing", TargetState.EMPTY)
    workers.all[1].open.set()
    monkeypatch.undo()
    given = await of.grant(ask_both(of, 1), Fence())
    assert (given.ways["with/0"].region.session, len(workers.all)) == ("1", 2)
    await of.close()


async def test_a_process_that_does_not_start_is_tried_again(tmp_path: Path) -> None:
    """The grant says why; the next one does not hear of it."""
    workers = Workers()
    workers.broken = {1: TransferError("initialising Mooncake over rdma failed")}
    of = rdma_target(tmp_path, workers)
    await of.open()
    with pytest.raises(TransferError, match="over rdma failed"):
        await of.grant(ask_both(of, 1), Fence())
    given = await of.grant(ask_both(of, 1), Fence())
    assert (given.ways["with/0"].region.session, workers.all[1].dead.done()) == ("2", True)
    await of.close()
