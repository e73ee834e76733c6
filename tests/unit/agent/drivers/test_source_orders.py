"""Orders at a source: one that fails wedges nothing, and ends by its deadline."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weightsync.errors import InputError, Refused
from weightsync.wire import local
from weightsync.wire.v1 import OrderEnd, PublishAnswer, PublishOutcome
from weightsync_agent.drivers.route_runner import RECEIPTS
from weightsync_agent.peers.client import Unreachable

Run = Callable[..., Any]


def raiser(error: BaseException) -> Callable[[Any], Any]:
    """An answer that raises."""

    def answer(body: Any) -> Any:
        raise error

    return answer


@pytest.mark.parametrize("path", ["/v1/receipts", "/v1/routes"], ids=["of a receipt", "of a route's report"])
@pytest.mark.parametrize(
    "error", [InputError("no token"), KeyError("bug")], ids=["a known error", "an unforeseen one"]
)
def test_a_failure_wedges_no_later_order(world: Run, in_virtual_time: Run, path: str, error: Exception) -> None:
    """The order's arena becomes free, and the next order of the version is verified."""

    async def main() -> None:
        w = world()
        await w.publish(1)
        w.client.answers[path] = raiser(error)
        await w.source.order(w.order(1))
        await asyncio.sleep(5)
        assert [len(replica.readers) for replica in w.replicas()] == [0]
        del w.client.answers[path]
        await asyncio.wait_for(w.source.order(w.order(1, "t")), 10)
        await asyncio.sleep(5)
        assert w.client.paths("/v1/routes")[-1].verified
        await asyncio.wait_for(w.source.end(OrderEnd(sync="t", term=1, writer=w.source.writer)), 10)
        await w.source.close()

    in_virtual_time(main())


def test_a_write_that_dies_of_anything_ends_its_route_and_the_worker(world: Run, in_virtual_time: Run) -> None:
    """What is in flight is not known: no last receipt, a failed route, another worker for the next order."""

    async def main() -> None:
        w = world()
        await w.publish(1, digests=False)
        await asyncio.sleep(3)
        w.workers[0].raises = OSError("the pipe is gone")
        await w.source.order(w.order(1))
        await asyncio.sleep(5)
        assert [(end.verified, end.reason) for end in w.client.paths("/v1/routes")] == [(False, "SourceFailed")]
        assert not any(receipt.last for receipt in w.client.paths("/v1/receipts"))
        assert w.workers[0].dead.done()
        assert [len(replica.readers) for replica in w.replicas()] == [0]
        await w.source.order(w.order(1, "t"))
        await asyncio.sleep(5)
        assert w.client.paths("/v1/routes")[-1].verified
        await w.source.close()

    in_virtual_time(main())


def test_a_failed_route_is_reported_before_its_last_receipt_is_answered(world: Run, in_virtual_time: Run) -> None:
    """The target is dead: the other engines of the barrier do not wait for its silence a second time."""

    async def main() -> None:
        w = world()
        await w.publish(1)
        plain = w.client.persist

        async def persist(address: str, path: str, kind: type, body: Any = None, *, seconds: float) -> Any:
            if path == "/v1/receipts" and body.last:
                await asyncio.sleep(100)
            if path == "/v1/receipts":
                raise Unreachable("no answer")
            return await plain(address, path, kind, body, seconds=seconds)

        w.client.persist = persist
        await w.source.order(w.order(1))
        await asyncio.sleep(5)
        assert [(end.verified, end.reason) for end in w.client.paths("/v1/routes")] == [(False, "Unreachable")]
        await w.source.close()

    in_virtual_time(main())


def test_receipts_overlap_and_the_last_waits_for_all(world: Run, in_virtual_time: Run) -> None:
    """While the target checks what landed first, it is asked for the next; what closes our part comes alone."""

    async def main() -> None:
        w = world()
        plain = w.client.persist
        under_way: list[Any] = []
        together: list[int] = []

        async def persist(address: str, path: str, kind: type, body: Any = None, *, seconds: float) -> Any:
            if path != "/v1/receipts":
                return await plain(address, path, kind, body, seconds=seconds)
            under_way.append(body)
            together.append(len(under_way))
            assert not body.last or under_way == [body]
            await asyncio.sleep(1.0)  # longer than a bucket is written
            under_way.remove(body)
            return await plain(address, path, kind, body, seconds=seconds)

        w.client.persist = persist
        await w.publish(1)
        await w.source.order(w.order(1))
        await asyncio.sleep(10)
        receipts = w.client.paths("/v1/receipts")
        assert [receipt.last for receipt in receipts] == [False] * (len(receipts) - 1) + [True]
        assert max(together) == min(RECEIPTS, len(receipts) - 1) > 1
        assert w.client.paths("/v1/routes")[-1].verified
        await w.source.close()

    in_virtual_time(main())


def test_buckets_told_twice_are_digested_and_written_once(world: Run, in_virtual_time: Run) -> None:
    """The Publisher sent the same request again: nothing is written again, and the route closes."""

    async def main() -> None:
        w = world()
        id_ = await w.begin(1)
        w.fill(id_, digests=False)
        w.fill(id_, digests=False)
        await w.source.copied(id_)
        w.fill(id_, digests=False)
        await w.source.order(w.order(1))
        await asyncio.sleep(5)
        (end,) = w.client.paths("/v1/routes")
        assert (end.verified, end.resent) == (True, 0)
        assert len(w.workers[0].digested) == len(set(w.workers[0].digested)) > 1
        await w.source.close()

    in_virtual_time(main())


def test_an_order_ends_by_its_deadline(world: Run, in_virtual_time: Run) -> None:
    """The shard never becomes whole: the routes are given up, and say why."""

    async def main() -> None:
        w = world()
        await w.begin(1)
        await asyncio.sleep(1)
        await w.source.order(w.order(1))
        await asyncio.sleep(30)
        assert w.client.paths("/v1/routes") == []
        await asyncio.sleep(10)
        assert [end.reason for end in w.client.paths("/v1/routes")] == ["DeadlineExceeded"]
        await w.source.close()

    in_virtual_time(main())


def test_an_order_of_a_broken_version_is_refused(world: Run, in_virtual_time: Run) -> None:
    """All programs' arenas are found, and the version is broken: refused with the reason in words."""

    async def main() -> None:
        w = world()
        id_ = await w.publish(1)
        await asyncio.sleep(2)
        await w.source.failed(id_, local.PublishFailure(reason="Wrong", message="a tensor lacks"))
        with pytest.raises(Refused, match="never will: a tensor lacks"):
            await w.source.order(w.order(1))
        await w.source.close()

    async def unknown() -> None:
        w = world()
        with pytest.raises(Refused) as refused:
            await w.source.order(w.order(7))
        assert refused.value.reason == "NotFilled"
        await w.source.close()

    in_virtual_time(main())
    in_virtual_time(unknown())


def test_two_calls_at_once_share_one_worker(world: Run, in_virtual_time: Run) -> None:
    """Digests and an order ask for the worker at the same moment: one is started, with the arena attached."""

    async def main() -> None:
        w = world()
        id_ = await w.begin(1)
        await asyncio.sleep(1)
        ordered = asyncio.create_task(w.source.order(w.order(1)))
        w.fill(id_, digests=False)
        await w.source.copied(id_)
        await ordered
        await asyncio.sleep(5)
        assert len(w.workers) == 1
        assert w.client.paths("/v1/routes")[0].verified
        await w.source.close()

    in_virtual_time(main())


def test_a_reset_connection_fails_no_publish(world: Run, in_virtual_time: Run) -> None:
    """The coordinator is out of reach for a while: the outcome is asked for again."""

    async def main() -> None:
        w = world()
        errors = [Unreachable("reset"), Unreachable("reset")]

        def outcome(body: Any) -> PublishOutcome:
            if errors:
                raise errors.pop()
            return PublishOutcome(ended=True)

        w.client.answers["/v1/outcomes"] = outcome
        id_ = await w.publish(1)
        assert await w.source.outcome(id_, 10) == PublishOutcome(ended=True)
        await w.source.close()

    in_virtual_time(main())


def test_an_unforeseen_error_still_gives_an_outcome(world: Run, in_virtual_time: Run) -> None:
    """The trainer is not left waiting by an error of the agent's own."""

    async def main() -> None:
        w = world(arenas=1)
        w.client.answers["/v1/publishes"] = raiser(KeyError("bug"))
        id_ = await w.publish(1)
        assert (await w.source.outcome(id_, 10)).reason == "SourceFailed"
        await asyncio.wait_for(w.begin(2), 10)
        await w.source.close()

    in_virtual_time(main())


def test_names_are_told_again_to_a_new_life_of_the_coordinator(world: Run, in_virtual_time: Run) -> None:
    """Another life in the answer to a publish: the names go there once more, and not with every publish."""

    async def main() -> None:
        w = world()
        w.client.ended.set()
        w.source.who = w.source.who.model_copy(update={"stages": 2})
        lives = iter(["x", "x", "y", "y"])

        def answer(body: Any) -> Any:
            return PublishAnswer(lineage="1" * 16, number=body.sequence, life=next(lives))

        w.client.answers["/v1/publishes"] = answer
        told = []
        for sequence in range(1, 5):
            answered = await w.source.begin(w.request(sequence))
            if sequence == 1:
                await w.source.names(answered.id, local.NamesReport(names=("a", "b")))
            w.fill(answered.id)
            await w.source.copied(answered.id)
            await asyncio.sleep(3)
            told.append(len(w.client.paths("/v1/names")))
        assert told[1] == told[0]
        assert told[2:] == [told[1] + 1] * 2
        await w.source.close()

    in_virtual_time(main())


def test_what_was_learned_of_the_ranks_count_outlives_the_agent(world: Run, in_virtual_time: Run) -> None:
    """A rank that restarted alone is behind the others by as much after its agent's restart."""

    async def main() -> None:
        w = world()
        w.client.answers["/v1/publishes"] = lambda body: PublishAnswer(lineage="1" * 16, number=body.sequence + 6)
        await w.publish(1)
        await w.publish(2)
        await w.source.close()
        again = world()
        again.client.answers = w.client.answers
        await again.publish(3)
        assert [body.offset for x in (w, again) for body in x.client.paths("/v1/publishes")] == [0, 6, 6]
        await again.source.close()

    in_virtual_time(main())
