"""Workers by lane: started once, killed also while they start, and never written through with a stale mapping."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weightsync.errors import TransferError
from weightsync_agent.drivers.source_workers import SourceWorkers
from weightsync_agent.transfer.settings import OWN, Carrier
from weightsync_agent.transfer.supervisor import DIED

Run = Callable[..., Any]
A = Path("/arenas/a")


class Worker:
    """No process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.calls: list[str] = []
        self.stuck = False
        self.capabilities = SimpleNamespace(transport="tcp")

    async def attach(self, path: Path) -> None:
        await asyncio.sleep(0.1)
        self.calls.append("attach")

    async def detach(self, path: Path) -> None:
        await asyncio.sleep(0.1)
        if self.stuck:
            raise TransferError("a write is not terminal")
        self.calls.append("detach")

    def kill(self) -> None:
        if not self.dead.done():
            self.dead.set_result("killed")

    async def close(self) -> None:
        self.kill()


class Made:
    """SourceWorkers and what they did."""

    def __init__(self) -> None:
        self.started: list[Worker] = []
        self.dead: list[int] = []
        self.error: Exception | None = None
        start: Any = self._start
        self.workers: Any = SourceWorkers("source-0", start, self.dead.append)

    async def _start(self, name: str, carrier: Carrier = OWN) -> Worker:
        await asyncio.sleep(1.0)
        if self.error is not None:
            raise self.error
        self.started.append(Worker(name))
        return self.started[-1]


def test_one_worker_for_all_who_ask_at_once(in_virtual_time: Run) -> None:
    """Started once, attached once; a caller that gives up ends nobody else's wait."""

    async def main() -> None:
        m = Made()
        asked = [asyncio.create_task(m.workers.ready(0, A)) for _ in range(3)]
        await asyncio.sleep(0.5)
        asked[0].cancel()
        assert await asked[1] is await asked[2] is m.started[0]
        assert (len(m.started), m.started[0].calls) == (1, ["attach"])
        assert await m.workers.ready(1) is m.started[1]
        await m.workers.close()
        assert all(worker.dead.done() for worker in m.started)

    in_virtual_time(main())


def test_a_lane_that_is_killed_while_it_starts_is_dead_when_it_has_started(in_virtual_time: Run) -> None:
    """Not before: then nothing of it can read an arena any more. It is never used again."""

    async def main() -> None:
        m = Made()
        asked = asyncio.create_task(m.workers.ready(0))
        await asyncio.sleep(0.5)
        m.workers.kill(0)
        assert m.dead == []
        await asyncio.wait({asked})
        await asyncio.sleep(0)
        assert (m.dead, m.started[0].dead.done()) == ([0], True)
        with pytest.raises(TransferError) as caught:
            await m.workers.ready(0)
        assert (caught.value.reason, caught.value.quiet) == (DIED, True)
        await m.workers.close()

    in_virtual_time(main())


@pytest.mark.parametrize("when", ["never started", "started", "failing"], ids=lambda when: when)
def test_a_killed_lane_is_told_dead_once(in_virtual_time: Run, when: str) -> None:
    """Whatever has become of its worker."""

    async def main() -> None:
        m = Made()
        if when == "started":
            await m.workers.ready(0)
        if when == "failing":
            m.error = TransferError("no port", quiet=True)
            asked = asyncio.create_task(m.workers.ready(0))
            await asyncio.sleep(0.5)
            m.workers.kill(0)
            await asyncio.wait({asked})
        else:
            m.workers.kill(0)
        await asyncio.sleep(0)
        assert m.dead == [0]
        await m.workers.close()

    in_virtual_time(main())


def test_a_start_that_failed_is_tried_again(in_virtual_time: Run) -> None:
    """Quiet, with a reason that is no worker's death: the lane is still to be used."""

    async def main() -> None:
        m = Made()
        m.error = TransferError("it ended", reason=DIED, quiet=True)
        with pytest.raises(TransferError, match="it ended") as caught:
            await m.workers.ready(0)
        assert (caught.value.reason, caught.value.quiet) == ("NoWorker", True)
        m.error = None
        assert await m.workers.ready(0) is m.started[0]
        assert m.dead == []
        await m.workers.close()

    in_virtual_time(main())


def test_a_gone_arena_is_let_go_before_another_is_mapped_at_its_path(in_virtual_time: Run) -> None:
    """Whoever comes first: the next use, or the background."""

    async def main() -> None:
        m = Made()
        await m.workers.ready(0, A)
        m.workers.forget(A)
        await m.workers.ready(0, A)
        assert m.started[0].calls == ["attach", "detach", "attach"]
        await asyncio.sleep(1)
        assert m.started[0].calls == ["attach", "detach", "attach"]
        m.workers.forget(A)
        await asyncio.sleep(1)
        assert m.started[0].calls[-1] == "detach"
        m.workers.forget(A)
        await m.workers.close()

    in_virtual_time(main())


def test_a_worker_that_does_not_let_an_arena_go_is_ended(in_virtual_time: Run) -> None:
    """Nobody writes from bytes that are gone."""

    async def main() -> None:
        m = Made()
        await m.workers.ready(0, A)
        m.started[0].stuck = True
        m.workers.forget(A)
        with pytest.raises(TransferError):
            await m.workers.ready(0, A)
        await asyncio.sleep(1)
        assert m.dead == [0]
        await m.workers.close()

    in_virtual_time(main())


def test_closing_ends_what_is_still_being_started(in_virtual_time: Run) -> None:
    """No process is left behind."""

    async def main() -> None:
        m = Made()
        asked = asyncio.create_task(m.workers.ready(0))
        await asyncio.sleep(0.5)
        await m.workers.close()
        await asyncio.gather(asked, return_exceptions=True)
        assert m.started == []

    in_virtual_time(main())


def test_a_lane_has_a_worker_for_each_carrier(in_virtual_time: Run) -> None:
    """They end together, and the lane is dead once both have: until then one of them may read an arena."""

    async def scenario() -> None:
        m = Made()
        tcp, rdma = await m.workers.ready(0, A), await m.workers.ready(0, A, carrier=Carrier("rdma"))
        assert tcp is not rdma
        assert (tcp.calls, rdma.calls) == (["attach"], ["attach"])
        assert await m.workers.ready(0, A, carrier=Carrier("rdma")) is rdma
        rdma.kill()
        await asyncio.sleep(0)
        assert (tcp.dead.done(), m.dead) == (True, [])
        await asyncio.sleep(0.1)
        assert m.dead == [0]

    in_virtual_time(scenario())


def test_a_carrier_that_is_not_here_is_said(in_virtual_time: Run) -> None:
    """The route's end names it; the lane goes on with what it has."""

    async def scenario() -> None:
        m = Made()
        tcp = await m.workers.ready(0, A)
        m.error = TransferError("this pod has no RDMA device", reason="NoDevice", quiet=True)
        with pytest.raises(TransferError, match="no RDMA device") as caught:
            await m.workers.ready(0, A, carrier=Carrier("rdma"))
        assert (caught.value.reason, caught.value.quiet) == ("NoDevice", True)
        assert (await m.workers.ready(0, A), m.dead) == (tcp, [])

    in_virtual_time(scenario())
