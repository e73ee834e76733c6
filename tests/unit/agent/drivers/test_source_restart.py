"""A source's agent that is killed: what it sealed serves repairs again, without a publish."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weightsync.errors import Refused, TransferError
from weightsync.version import Version
from weightsync.wire.v1 import OrderEnd
from weightsync_agent.arenas.files import sealed_in
from weightsync_agent.protocol.replica import ReplicaState

Run = Callable[..., Any]


def version(number: int) -> Version:
    return Version(lineage="1" * 16, number=number, root="0" * 64)


async def lived(w: Any, numbers: tuple[int, ...] = (1,), *, copied: bool = False) -> None:
    """A life that sealed these versions, and was killed while it filled another, or had filled it."""
    for number in numbers:
        await w.publish(number)
        await w.source.order(w.order(number, f"s{number}"))
        await asyncio.sleep(3)
        await w.source.end(OrderEnd(sync=f"s{number}", term=1, writer=w.source.writer, version=version(number)))
    begun = await w.begin(9)
    if copied:
        w.fill(begun)
        await w.source.copied(begun)
    await w.source.close()


def again(world: Run, folder: Path, **options: Any) -> Any:
    """The next life over the same volume."""
    w = world(**options)
    for records in sealed_in(folder).values():
        w.source.recover(records)
    return w


@pytest.mark.parametrize("copied", [False, True], ids=["while another was filled", "with another filled"])
def test_a_sealed_version_is_ordered_again_after_a_restart(
    world: Run, in_virtual_time: Run, tmp_path: Path, copied: bool
) -> None:
    """The shard's digests are reported, the route verified, from the same bytes."""

    async def main() -> None:
        await lived(world(), copied=copied)
        w = again(world, tmp_path)
        assert [replica.state for replica in w.replicas()] == [ReplicaState.FOUND]
        await w.source.order(w.order(1, "r"))
        await asyncio.sleep(5)
        assert [end.verified for end in w.client.paths("/v1/routes")] == [True]
        (shard,) = w.client.paths("/v1/shards")
        assert (shard.stage, len(shard.buckets)) == (0, 2)
        await w.publish(2)
        assert sorted(replica.state.name for replica in w.replicas()) == ["FILLED", "SEALED"]
        await w.source.close()

    in_virtual_time(main())


def test_bytes_that_changed_are_emptied_and_not_offered(world: Run, in_virtual_time: Run, tmp_path: Path) -> None:
    """The order that waited for them is refused; the next publish fills the arena."""

    async def main() -> None:
        await lived(world())
        w = again(world, tmp_path)
        w.bytes = "f" * 32
        with pytest.raises(Refused) as refused:
            await w.source.order(w.order(1, "r"))
        assert refused.value.reason == "NotFilled"
        assert [replica.state for replica in w.replicas()] == [ReplicaState.EMPTY]
        assert sealed_in(tmp_path) == {}
        await w.source.close()

    in_virtual_time(main())


def test_bytes_that_cannot_be_read_yet_are_compared_later(world: Run, in_virtual_time: Run, tmp_path: Path) -> None:
    """No worker can be started for a while: an order is refused, the arena is kept, and offered when it was read."""

    async def main() -> None:
        await lived(world())
        w = again(world, tmp_path)
        w.no_worker = TransferError("no process", quiet=True)
        with pytest.raises(Refused) as refused:
            await w.source.order(w.order(1, "r"))
        assert refused.value.reason == "NotFilled"
        assert [replica.state for replica in w.replicas()] == [ReplicaState.FOUND]
        w.no_worker = None
        await asyncio.sleep(10)
        await w.source.order(w.order(1, "t"))
        await asyncio.sleep(5)
        assert [end.verified for end in w.client.paths("/v1/routes")] == [True]
        await w.source.close()

    in_virtual_time(main())


def test_only_the_newest_of_two_sealed_versions_is_offered(world: Run, in_virtual_time: Run, tmp_path: Path) -> None:
    """The other arena is kept for the next publish, in the same file."""

    async def main() -> None:
        w = world()
        for number in (1, 2):
            await w.publish(number)
            await w.source.order(w.order(number, f"s{number}"))
            await asyncio.sleep(3)
            end = OrderEnd(sync=f"s{number}", term=1, writer=w.source.writer, version=version(number))
            await w.source.end(end)
        await w.source.close()
        w = again(world, tmp_path)
        assert sorted(replica.state.name for replica in w.replicas()) == ["FOUND", "SPENT"]
        with pytest.raises(Refused):
            await w.source.order(w.order(1, "r"))
        await w.source.order(w.order(2, "t"))
        await asyncio.sleep(5)
        assert [end.verified for end in w.client.paths("/v1/routes")] == [True]
        await w.source.close()

    in_virtual_time(main())


def test_a_publish_does_not_wait_for_the_comparison(world: Run, in_virtual_time: Run, tmp_path: Path) -> None:
    """With one arena it is filled at once."""

    async def main() -> None:
        w = world(arenas=1)
        await w.publish(1)
        await w.source.order(w.order(1))
        await asyncio.sleep(3)
        await w.source.end(OrderEnd(sync="s", term=1, writer=w.source.writer, version=version(1)))
        await w.source.close()
        w = again(world, tmp_path, arenas=1)
        id_ = await asyncio.wait_for(w.publish(2), 0.1)
        await asyncio.sleep(10)
        assert w.of(id_).state is ReplicaState.FILLED
        assert sealed_in(tmp_path) == {}
        await w.source.close()

    in_virtual_time(main())


def test_a_term_that_is_over_stays_over_after_a_restart(world: Run, in_virtual_time: Run, tmp_path: Path) -> None:
    """The order of a coordinator that was replaced is refused; its end seals nothing."""

    async def main() -> None:
        w = world()
        await w.publish(1)
        await asyncio.sleep(2)
        await w.source.order(w.order(1, term=4).model_copy(update={"coordinator": "c"}))
        await w.source.close()
        for spoilt, reason in ((False, "StaleTerm"), (True, "NotFilled")):
            if spoilt:
                (tmp_path / "term-0").write_bytes(b"torn")
            w = again(world, tmp_path)
            with pytest.raises(Refused) as refused:
                await w.source.order(w.order(1, "old", term=3))
            assert refused.value.reason == reason
            await w.source.close()

    in_virtual_time(main())


def test_ends_of_an_older_term_or_another_coordinator_are_refused(world: Run, in_virtual_time: Run) -> None:
    """And seal nothing."""

    async def main() -> None:
        w = world()
        await w.publish(1)
        await asyncio.sleep(2)
        await w.source.order(w.order(1, term=4).model_copy(update={"coordinator": "c"}))
        await asyncio.sleep(3)
        for term, coordinator, reason in ((3, "c", "StaleTerm"), (4, "d", "TermHeld")):
            end = OrderEnd(sync="s", term=term, writer=w.source.writer, version=version(1), coordinator=coordinator)
            with pytest.raises(Refused) as refused:
                await w.source.end(end)
            assert refused.value.reason == reason
        assert [replica.state for replica in w.replicas()] == [ReplicaState.FILLED]
        await w.source.close()

    in_virtual_time(main())
