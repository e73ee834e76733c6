"""A stalled write over RDMA is ended at its source; over TCP it is not, since there that ends nothing."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weightsync.buckets import Bucket
from weightsync.errors import TransferError
from weightsync.wire.v1 import Region
from weightsync_agent.transfer import ending, supervisor
from weightsync_agent.transfer.probe import Peer
from weightsync_agent.transfer.supervisor import TransferSettings, TransferWorker

ARENA = Path("/dev/weightsync/arena")
TO = Region(session="10.0.0.2:15001", address=4096, nbytes=8192)
ELSEWHERE = TO.model_copy(update={"session": "10.0.0.3:15001"})
BUCKETS = [Bucket(offset=0, nbytes=4096)]


class FakeChild:
    """A child whose writes never end by themselves; a fence ends them, unless ``deaf``."""

    def __init__(self, tell: Any) -> None:
        self.tell = tell
        self.deaf = False
        self.fenced: list[dict[str, Any]] = []
        self.writes: list[dict[str, Any]] = []

    def alive(self) -> None:
        pass

    def number(self) -> int:
        return len(self.writes) + 1

    def send(self, message: dict[str, Any]) -> None:
        if message["call"] == "write":
            self.writes.append(message)

    async def call(self, call: str, seconds: float, **arguments: Any) -> None:
        assert call == "fence"
        self.fenced.append(arguments)
        if self.deaf:
            raise TransferError("did not answer", reason="Stalled")
        # As in a child: what the device gave up is told after the answer.
        asyncio.get_running_loop().call_soon(self._end_all)

    def _end_all(self) -> None:
        for write in self.writes:
            self.tell({"event": "end", "write": write["id"], "failed": "halted", "lost": 1})


def made(monkeypatch: pytest.MonkeyPatch, transport: str) -> tuple[TransferWorker, FakeChild]:
    """A worker over that transport, whose peers are met."""

    async def answered(session: str, deadline_seconds: float) -> Peer:
        return Peer(session, 2, ((0, 1 << 62),), transport)

    async def lives(session: str, deadline_seconds: float) -> bool:
        return False

    monkeypatch.setattr(supervisor, "probe", answered)
    monkeypatch.setattr(ending, "gone", lives)
    worker = TransferWorker("source", TransferSettings())
    child = FakeChild(worker._happened)
    worker._child = child  # type: ignore[assignment]
    worker._regions[ARENA] = Region(session="10.0.0.1:15001", address=0, nbytes=8192)
    worker.capabilities = SimpleNamespace(transport=transport)  # type: ignore[assignment]
    return worker, child


async def failure(worker: TransferWorker, to: Region, stall: float) -> TransferError:
    """How a write ends."""
    with pytest.raises(TransferError) as caught:
        async for _ in worker.write(ARENA, BUCKETS, to, stall_seconds=stall):
            pass
    return caught.value


async def test_a_stall_over_rdma_is_fenced_and_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stalled write is Stalled and quiet; another of the worker may go on elsewhere; nothing new is taken."""
    worker, child = made(monkeypatch, "rdma")
    beside = asyncio.create_task(failure(worker, ELSEWHERE, 10))
    stalled = await failure(worker, TO, 0.05)
    assert (stalled.reason, stalled.quiet) == ("Stalled", True)
    assert [each["session"] for each in child.fenced] == [TO.session]
    for error in (await beside, await failure(worker, ELSEWHERE, 1)):
        assert (error.reason, error.quiet) == ("WorkerStuck", True)
        assert TO.session in str(error)


async def test_a_fence_that_fails_is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that does not answer: nobody knows what its device still reads."""
    worker, child = made(monkeypatch, "rdma")
    child.deaf = True
    error = await failure(worker, TO, 0.05)
    assert (error.reason, error.quiet) == ("Stalled", False)


async def test_a_stall_over_tcp_is_not_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the bytes are in sockets by now."""
    worker, child = made(monkeypatch, "tcp")
    error = await failure(worker, TO, 0.05)
    assert (error.reason, error.quiet, child.fenced) == ("Stalled", False, [])


async def test_another_transport_is_refused_before_a_byte_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer says which it speaks."""
    worker, child = made(monkeypatch, "rdma")
    worker.capabilities = SimpleNamespace(transport="tcp")  # type: ignore[assignment]
    error = await failure(worker, TO, 1)
    assert (error.reason, error.quiet, child.writes) == ("CapabilityMismatch", True, [])
