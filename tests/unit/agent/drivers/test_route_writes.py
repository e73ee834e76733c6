"""A route's writes: what stalls is told at once, what is not written waits for another lane, nothing spins."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weightsync.buckets import Bucket
from weightsync.digests import BucketDigest
from weightsync.errors import TransferError
from weightsync.wire.v1 import PlannedRoute, Region
from weightsync_agent.drivers.route_writes import BATCH, LANES, RouteWrites
from weightsync_agent.protocol import route as r
from weightsync_agent.protocol import source_events as s
from weightsync_agent.transfer.supervisor import DIED, STALLED, STOPPED

Run = Callable[..., Any]
D = "0" * 32
ID = s.RouteId("s", "t", 0)
REGION = Region(session="t:1", address=0, nbytes=1 << 20)
PLANNED = PlannedRoute(engine="e", target="t", rank=0, address="a", program=D, layout=D, grant=D, region=REGION)


def buckets(count: int) -> tuple[BucketDigest, ...]:
    return tuple(BucketDigest(offset=10 * number, nbytes=10, digest=D) for number in range(count))


class Rig:
    """One route's writes. ends: by the call's number, its seconds and its error."""

    def __init__(self, ends: list[tuple[float, TransferError | None]]) -> None:
        self.ends = ends
        self.asked: list[int] = []
        self.told: list[tuple[float, object]] = []
        self.calls = 0
        self.tail = 0.0  # seconds from a call's last bucket to its end
        self.dead: set[int] = set()
        ready: Any = self._ready
        self.writes = RouteWrites(
            ID, PLANNED, arena=Path("/a"), lane=0, stall_seconds=5.0, ready=ready, tell=self._note
        )
        self.writes.told = self._note

    def _note(self, event: object) -> None:
        self.told.append((asyncio.get_running_loop().time(), event))

    async def _ready(self, lane: int, arena: Path) -> Any:
        self.asked.append(lane)
        if lane in self.dead:
            raise TransferError("it has ended", reason=DIED, quiet=True)
        return SimpleNamespace(capabilities=SimpleNamespace(transport="tcp"), write=self._write)

    async def _write(
        self, path: Path, runs: list[Bucket], to: Region, *, stall_seconds: float, stop: asyncio.Event
    ) -> AsyncIterator[Bucket]:
        number, self.calls = self.calls, self.calls + 1
        seconds, error = self.ends[number] if number < len(self.ends) else (1.0, None)
        stopped = asyncio.create_task(stop.wait())
        if error is None:
            await asyncio.wait({stopped}, timeout=seconds)
        else:
            await asyncio.sleep(seconds)
        stopped.cancel()
        if error is not None:
            raise error
        if stop.is_set():
            raise TransferError("stopped", reason=STOPPED, quiet=True)
        for run in runs:
            yield run
        await asyncio.sleep(self.tail)

    def events(self, kind: type) -> list[tuple[float, Any]]:
        return [(at, event) for at, event in self.told if isinstance(event, kind)]


def stalled(quiet: bool = False) -> TransferError:
    return TransferError("nothing ended", reason=STALLED, quiet=quiet)


def test_a_stall_is_told_at_once_and_the_write_breaks_when_no_call_is_left(in_virtual_time: Run) -> None:
    """The second call ends later: the worker is left before, and only then it is said that bytes may land."""

    async def main() -> None:
        rig = Rig([(5.0, stalled()), (8.0, stalled())])
        rig.writes.add(buckets(2 * BATCH))
        await asyncio.sleep(20)
        assert rig.events(s.RouteStalled)[0] == (5.0, s.RouteStalled(ID, 0))
        ((at, broke),) = rig.events(r.WriteBroke)
        assert (at, broke.quiet, broke.reason) == (8.0, False, STALLED)
        assert rig.writes.close() == (0,)

    in_virtual_time(main())


@pytest.mark.parametrize(
    ("quiet", "open_"),
    [
        pytest.param((False, False), (0,), id="bytes may still land: the lane's end frees the arena"),
        pytest.param((True, True), (), id="ended at their source: the arena is free"),
        pytest.param((True, False), (0,), id="only the first is ended: the lane's end frees the arena"),
        pytest.param((False, True), (0,), id="only the second is ended: the lane's end frees the arena"),
    ],
)
def test_a_stalled_write_holds_its_arena_unless_it_was_ended_at_its_source(
    in_virtual_time: Run, quiet: tuple[bool, bool], open_: tuple[int, ...]
) -> None:
    """Either way the stall is told: the target is a suspect. One write that may land makes the route unquiet."""

    async def main() -> None:
        rig = Rig([(5.0, stalled(quiet[0])), (6.0, stalled(quiet[1]))])
        rig.writes.add(buckets(2 * BATCH))
        await asyncio.sleep(20)
        assert rig.events(s.RouteStalled)[0] == (5.0, s.RouteStalled(ID, 0))
        ((_, broke),) = rig.events(r.WriteBroke)
        assert (broke.quiet, broke.reason) == (all(quiet), STALLED)
        assert rig.writes.close() == open_

    in_virtual_time(main())


def test_what_its_dead_worker_cannot_write_waits_for_another_lane(in_virtual_time: Run) -> None:
    """It is asked once for each call, not again and again; on the next lane everything is written."""

    async def main() -> None:
        rig = Rig([])
        rig.dead = {0}
        rig.writes.add(buckets(BATCH * (LANES + 1)))
        await asyncio.sleep(20)
        assert 0 < len(rig.asked) <= LANES
        unsent = [offset for _, event in rig.events(r.Unsent) for offset in event.offsets]
        rig.writes.add(b for b in buckets(BATCH * (LANES + 1)) if b.offset in unsent)
        rig.writes.move(1)
        await asyncio.sleep(20)
        written = {offset for _, event in rig.events(r.Written) for offset in event.offsets}
        assert written == {b.offset for b in buckets(BATCH * (LANES + 1))}
        assert rig.events(r.WriteBroke) == []
        assert rig.writes.close() == ()

    in_virtual_time(main())


def test_a_moved_route_leaves_its_old_lane_when_its_calls_there_have_ended(in_virtual_time: Run) -> None:
    """What was not written is Unsent; the old lane is told to be free once, after that."""

    async def main() -> None:
        rig = Rig([(10.0, None), (10.0, None)])
        rig.writes.add(buckets(2 * BATCH))
        await asyncio.sleep(2)
        rig.writes.move(1)
        await asyncio.sleep(0.5)
        assert [event.offsets for _, event in rig.events(r.Unsent)] == [(0, 10, 20, 30), (40, 50, 60, 70)]
        assert [event for _, event in rig.events(s.RouteMoved)] == [s.RouteMoved(ID, 0)]
        rig.writes.add(buckets(2 * BATCH))
        await asyncio.sleep(5)
        assert rig.asked == [0, 0, 1, 1]
        rig.writes.move(2)
        assert [event for _, event in rig.events(s.RouteMoved)] == [s.RouteMoved(ID, 0), s.RouteMoved(ID, 1)]

    in_virtual_time(main())


def test_a_lane_with_a_stalled_call_is_not_told_to_be_free(in_virtual_time: Run) -> None:
    """Only the end of its worker makes it so."""

    async def main() -> None:
        rig = Rig([(5.0, stalled())])
        rig.writes.add(buckets(1))
        await asyncio.sleep(6)
        rig.writes.move(1)
        assert rig.events(s.RouteMoved) == []
        assert rig.writes.close() == (0,)

    in_virtual_time(main())


def test_giving_up_stops_what_is_in_flight(in_virtual_time: Run) -> None:
    """WriteBroke, quiet, when the last call has ended; nothing more is written."""

    async def main() -> None:
        rig = Rig([(10.0, None)] * LANES)
        rig.writes.add(buckets(BATCH * (LANES + 1)))
        await asyncio.sleep(1)
        rig.writes.stop()
        await asyncio.sleep(1)
        ((_, broke),) = rig.events(r.WriteBroke)
        assert (broke.quiet, broke.reason) == (True, STOPPED)
        assert rig.calls == LANES
        rig.writes.add(buckets(1))
        await asyncio.sleep(1)
        assert rig.calls == LANES

    in_virtual_time(main())


def test_the_first_error_after_which_bytes_may_land_is_the_one_that_is_told(in_virtual_time: Run) -> None:
    """A quiet one before it, and another after it, are not."""

    async def main() -> None:
        rig = Rig([(1.0, TransferError("a", reason="A", quiet=True)), (2.0, stalled()), (3.0, TransferError("c"))])
        rig.writes.add(buckets(3 * BATCH))
        await asyncio.sleep(5)
        ((at, broke),) = rig.events(r.WriteBroke)
        assert (at, broke.quiet, broke.reason) == (3.0, False, STALLED)

    in_virtual_time(main())


def test_a_call_whose_buckets_have_all_landed_holds_no_arena(in_virtual_time: Run) -> None:
    """The worker's word that the call is over may come after the target has verified the last bucket."""

    async def main() -> None:
        rig = Rig([])
        rig.tail = 10.0
        rig.writes.add(buckets(1))
        await asyncio.sleep(2)
        assert len(rig.events(r.Written)) == 1
        assert rig.writes.close() == ()

    in_virtual_time(main())
