"""Stalled targets at a source: they cost their own route, and an arena for one stall timeout at most."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weightsync.errors import TransferError
from weightsync.wire.v1 import OrderEnd
from weightsync_agent.transfer.supervisor import DIED, STUCK

Run = Callable[..., Any]


async def filled(w: Any) -> None:
    """Version 1 is here, and the first worker has started."""
    await w.publish(1, digests=False)
    await asyncio.sleep(3)


def ends(w: Any) -> dict[str, tuple[bool, str]]:
    """By target: how its route ended."""
    return {end.target: (end.verified, end.reason) for end in w.client.paths("/v1/routes")}


def test_a_stalled_target_fails_alone(world: Run, in_virtual_time: Run) -> None:
    """The others are verified through a fresh worker; the old one is killed, and the arena is free, in time."""

    async def main() -> None:
        w = world()
        await filled(w)
        w.workers[0].hangs = {"t:1"}
        w.workers[0].pace = 3.0
        await w.source.order(w.order(1, targets=("t", "u", "v")))
        await asyncio.sleep(4.9)
        assert ends(w) == {}
        await asyncio.sleep(2)
        assert w.workers[0].dead.done()  # as soon as the others have left it
        await asyncio.sleep(6)
        assert ends(w) == {"t": (False, "Stalled"), "u": (True, ""), "v": (True, "")}
        assert w.workers[0].dead.done()
        assert [len(replica.readers) for replica in w.replicas()] == [0]
        assert {len(worker.written) for worker in w.workers} == {2}  # one bucket of u and v each
        assert [end.resent for end in w.client.paths("/v1/routes") if end.verified] == [4096, 4096]
        told = [receipt for receipt in w.client.paths("/v1/receipts") if receipt.last]
        assert len(told) == 2
        await w.source.close()

    in_virtual_time(main())


@pytest.mark.parametrize(
    ("fences", "readers"),
    [
        pytest.param(False, {"t", "u"}, id="its bytes may land: its worker's end frees it"),
        pytest.param(True, {"u"}, id="it was ended at its source: it reads no more"),
    ],
)
def test_what_a_stalled_route_holds(world: Run, in_virtual_time: Run, fences: bool, readers: set[str]) -> None:
    """While another route still writes through the same worker; its target is told to be quiet, or is not told."""

    async def main() -> None:
        w = world()
        await filled(w)
        w.workers[0].hangs, w.workers[0].fences, w.workers[0].pace = {"t:1"}, fences, 5.5
        await w.source.order(w.order(1, targets=("t", "u")))
        await asyncio.sleep(5.3)
        assert ends(w) == {"t": (False, "Stalled")}
        assert not w.workers[0].dead.done()
        assert {route.target for replica in w.replicas() for route in replica.readers} == readers
        last = [receipt for receipt in w.client.paths("/v1/receipts") if receipt.last]
        assert [bool(receipt.failed) for receipt in last] == [True] * fences
        await asyncio.sleep(12)
        assert ends(w)["u"] == (True, "")
        assert [replica.readers for replica in w.replicas()] == [set()]
        await w.source.close()

    in_virtual_time(main())


def test_a_target_that_stalled_is_written_to_through_a_worker_of_its_own(world: Run, in_virtual_time: Run) -> None:
    """In the next order, from its start; that worker ends with the route, the shared one stays."""

    async def main() -> None:
        w = world()
        await filled(w)
        w.workers[0].hangs = {"t:1"}
        await w.source.order(w.order(1, targets=("t", "u")))
        await asyncio.sleep(12)
        await w.source.end(OrderEnd(sync="s", term=1, writer=w.source.writer))
        await w.source.order(w.order(1, "r", targets=("t", "u")))
        await asyncio.sleep(5)
        assert ends(w) == {"t": (True, ""), "u": (True, "")}
        wrote = [({session for session, _ in worker.written}, worker.dead.done()) for worker in w.workers[1:]]
        assert sorted(wrote, key=str) == [({"t:1"}, True), ({"u:1"}, False)]
        await w.source.close()

    in_virtual_time(main())


def test_a_publish_waits_a_stall_timeout_and_no_longer_for_a_stalled_target(world: Run, in_virtual_time: Run) -> None:
    """One arena, the target never answers again: the next publish gets the arena."""

    async def main() -> None:
        w = world(arenas=1)
        await filled(w)
        w.workers[0].hangs = {"t:1"}
        await w.source.order(w.order(1))
        await w.source.end(OrderEnd(sync="s", term=1, writer=w.source.writer))
        w.client.ended.set()
        began = asyncio.get_running_loop().time()
        await asyncio.wait_for(w.begin(2), 30)
        assert asyncio.get_running_loop().time() - began < 7
        await w.source.close()

    in_virtual_time(main())


def test_a_newer_order_waits_for_a_stalled_route_and_not_for_its_worker(world: Run, in_virtual_time: Run) -> None:
    """The older order's routes are terminal, or stalled, first."""

    async def main() -> None:
        w = world()
        await filled(w)
        w.workers[0].hangs = {"t:1"}
        await w.source.order(w.order(1))
        await asyncio.sleep(1)
        await asyncio.wait_for(w.source.order(w.order(1, "r", targets=("u",))), 6)
        await asyncio.sleep(5)
        assert ends(w) == {"t": (False, "Superseded"), "u": (True, "")}
        assert not any(receipt.last for receipt in w.client.paths("/v1/receipts") if receipt.failed)
        await w.source.close()

    in_virtual_time(main())


def test_a_worker_that_is_held_is_left_by_its_routes(world: Run, in_virtual_time: Run) -> None:
    """Another route holds it in its first contact: what was not written is written through another worker."""

    async def main() -> None:
        w = world()
        await filled(w)
        w.workers[0].raises = TransferError("held", reason=STUCK, quiet=True)
        await w.source.order(w.order(1, targets=("t", "u")))
        await asyncio.sleep(8)
        assert ends(w) == {"t": (True, ""), "u": (True, "")}
        assert w.workers[0].dead.done()
        assert len(w.workers) == 2
        await w.source.close()

    in_virtual_time(main())


def test_a_killed_worker_fails_what_was_in_flight_and_nothing_else(world: Run, in_virtual_time: Run) -> None:
    """Its bytes may still land: no last receipt. A route that waited for buckets goes on elsewhere."""

    async def main() -> None:
        w = world()
        await filled(w)
        w.workers[0].hangs = {"t:1"}
        await w.source.order(w.order(1, targets=("t",)))
        await asyncio.sleep(1)
        w.workers[0].kill()
        await asyncio.sleep(3)
        assert ends(w) == {"t": (False, DIED)}
        assert w.client.paths("/v1/receipts") == []
        assert [len(replica.readers) for replica in w.replicas()] == [0]
        id_ = await w.begin(2)
        await asyncio.sleep(1)
        await w.source.order(w.order(2, "r"))
        await asyncio.sleep(3)
        w.workers[-1].kill()
        await asyncio.sleep(3)
        w.fill(id_)
        await w.source.copied(id_)
        await asyncio.sleep(5)
        assert ends(w) == {"t": (True, "")}
        await w.source.close()

    in_virtual_time(main())


def test_a_worker_that_dies_before_the_first_write_costs_no_route(world: Run, in_virtual_time: Run) -> None:
    """It was attaching the arena: nothing was in flight, and another worker does it."""

    async def main() -> None:
        w = world()
        await w.publish(1)
        await w.source.order(w.order(1, targets=("t", "u")))
        await asyncio.sleep(1.05)
        w.workers[0].kill()
        await asyncio.sleep(5)
        assert ends(w) == {"t": (True, ""), "u": (True, "")}
        assert len(w.workers) == 2
        await w.source.close()

    in_virtual_time(main())


def test_a_digest_is_done_by_another_worker_where_one_ends(world: Run, in_virtual_time: Run) -> None:
    """The trainer's publish does not fail with a worker."""

    async def main() -> None:
        w = world()
        await filled(w)
        w.workers[0].kill()
        id_ = await w.begin(2)
        w.fill(id_, digests=False)
        await w.source.copied(id_)
        assert len(w.workers) == 2
        await w.source.close()

    in_virtual_time(main())


def test_no_worker_is_a_failed_route_and_not_a_hanging_one(world: Run, in_virtual_time: Run) -> None:
    """It cannot be started: the route ends quiet, with a last receipt."""

    async def main() -> None:
        w = world()
        await w.publish(1)
        w.no_worker = TransferError("it ended", reason=DIED, quiet=True)
        await w.source.order(w.order(1))
        await asyncio.sleep(5)
        assert ends(w) == {"t": (False, "NoWorker")}
        assert [receipt.last for receipt in w.client.paths("/v1/receipts")] == [True]
        w.no_worker = None
        await w.source.order(w.order(1, "r"))
        await asyncio.sleep(5)
        assert ends(w) == {"t": (True, "")}
        await w.source.close()

    in_virtual_time(main())
