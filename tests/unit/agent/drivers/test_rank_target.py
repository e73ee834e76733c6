"""A rank's arena and its worker: no failure leaves a rank fencing, or gives out a dead worker's region."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weightsync.convert.program import CopyProgram, Piece, TensorCopies
from weightsync.errors import InputError, Refused, TransferError
from weightsync.layout import lay_out
from weightsync.wire.v1 import Capabilities, GrantRequest, Region, WriterId
from weightsync_agent.drivers.rank_target import RankTarget
from weightsync_agent.protocol.target import TargetState

OURS = Capabilities(mooncake="1", transport="tcp")


class Worker:
    """In memory; its region's session is its number."""

    def __init__(self, number: int, broken: Exception | None) -> None:
        self.number, self.broken, self.capabilities = number, broken, OURS
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def attach(self, path: Path) -> Region:
        if self.broken is not None:
            raise self.broken
        return Region(session=str(self.number), address=1, nbytes=16)

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

    async def start(self, name: str) -> Any:
        self.all.append(Worker(len(self.all), self.broken.get(len(self.all))))
        return self.all[-1]


def target(folder: Path, workers: Workers) -> RankTarget:
    piece = Piece(box=((0, 4),), offset=0, strides=(4,), dtype="float32")
    tensor = TensorCopies(name="w", dtype="float32", shape=(4,), pieces=(piece,))
    program = CopyProgram(rank=0, layout=lay_out([("w", "float32", (4,))]), tensors=(tensor,))
    return RankTarget(program, folder, workers.start, None)


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
    assert (await rank.grant(ask(rank, 1))).region.session == "0"
    with pytest.raises(Refused, match="ask again"):
        await rank.grant(ask(rank, 2))
    await until(lambda: rank.machine.state is TargetState.EMPTY)
    assert all(worker.dead.done() for worker in workers.all)
    assert (await rank.grant(ask(rank, 2))).region.session == "2"
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
