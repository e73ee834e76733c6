"""Arenas of a source: every one that was taken comes back, and none is named or sealed for another publish."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weightsync.errors import PeerError, Refused
from weightsync.version import Version
from weightsync.wire import local
from weightsync.wire.v1 import OrderEnd
from weightsync_agent.protocol.replica import ReplicaState

Run = Callable[..., Any]
OTHER = "b" * 16


def test_a_begin_that_fails_gives_its_arenas_back(world: Run, in_virtual_time: Run) -> None:
    """The program cannot be had: the same request fails again instead of hanging, and succeeds once it can be had."""

    async def main() -> None:
        w = world(arenas=1)
        w.program_error = PeerError("nobody has it")
        for _ in range(3):
            with pytest.raises(PeerError, match="nobody has it"):
                await asyncio.wait_for(w.source.begin(w.request(1)), 10)
        w.program_error = None
        answer = await asyncio.wait_for(w.source.begin(w.request(1)), 10)
        assert [r.program for r in answer.replicas]
        await w.source.close()

    in_virtual_time(main())


def test_a_request_sent_twice_while_the_first_fails_is_tried_again(world: Run, in_virtual_time: Run) -> None:
    """The duplicate that waited for the first begins anew: it fails by itself, and does not hang."""

    async def main() -> None:
        w = world()
        w.program_error = PeerError("nobody has it")
        both = [asyncio.create_task(w.source.begin(w.request(1))) for _ in range(2)]
        results = await asyncio.wait_for(asyncio.gather(*both, return_exceptions=True), 10)
        assert [type(result) for result in results] == [PeerError, PeerError]
        await w.source.close()

    in_virtual_time(main())


def test_crashes_between_begin_and_copied_leak_no_arena(world: Run, in_virtual_time: Run) -> None:
    """Three lives of a Publisher that begin and die: the fourth gets an arena, the others' trouble is told."""

    async def main() -> None:
        w = world()
        for life in "abc":
            await w.source.renew(w.who(life * 16))
            await asyncio.wait_for(w.source.begin(w.request(1, life * 16)), 10)
            await asyncio.sleep(2)
        await w.source.renew(w.who("d" * 16))
        assert await asyncio.wait_for(w.source.begin(w.request(1, "d" * 16)), 10)
        await asyncio.sleep(1)
        assert [t.reason for t in w.client.paths("/v1/trouble")] == ["TrainerRestarted"] * 3
        await w.source.close()

    in_virtual_time(main())


def test_a_begin_that_waits_while_its_trainer_dies_takes_nothing(world: Run, in_virtual_time: Run) -> None:
    """It waited for an arena; the arena that the dead trainer gave back stays free."""

    async def main() -> None:
        w = world(arenas=1)
        await w.source.begin(w.request(1))
        waiting = asyncio.create_task(w.source.begin(w.request(2)))
        await asyncio.sleep(1)
        await w.source.renew(w.who(OTHER))
        with pytest.raises(Refused) as refused:
            await asyncio.wait_for(waiting, 10)
        assert refused.value.reason == "TrainerRestarted"
        assert all(replica.free for replica in w.replicas())
        await w.source.close()

    in_virtual_time(main())


def test_a_copied_version_keeps_its_arena_until_its_outcome(world: Run, in_virtual_time: Run) -> None:
    """v and v+1 are copied and have no order yet: v+2 waits until v's outcome is known, then takes v's arena."""

    async def main() -> None:
        w = world()
        first, second = await w.publish(1), await w.publish(2)
        held = [w.of(id_) for id_ in (first, second)]
        third = asyncio.create_task(w.begin(3))
        await asyncio.sleep(5)
        assert not third.done()
        assert [replica.name for replica in held] == ["1111111111111111.1", "1111111111111111.2"]
        w.client.ended.set()
        await asyncio.wait_for(third, 10)
        await w.source.close()

    in_virtual_time(main())


def test_a_version_without_an_outcome_frees_its_arena_at_the_deadline(world: Run, in_virtual_time: Run) -> None:
    """The coordinator never tells: with one arena, the next publish still gets it."""

    async def main() -> None:
        w = world(arenas=1)
        await w.publish(1)
        await asyncio.wait_for(w.begin(2), 200)
        await w.source.close()

    in_virtual_time(main())


@pytest.mark.parametrize("arenas", [1, 2])
def test_a_former_lifes_publish_that_nobody_joined_holds_no_arena(
    world: Run, in_virtual_time: Run, arenas: int
) -> None:
    """All ranks were restarted when this one had copied and others had not: its version will never have a name."""

    async def main() -> None:
        w = world(arenas=arenas)
        for number in range(1, arenas + 1):
            w.client.slow[number] = 60.0  # as long as a coordinator waits for the others
            await w.publish(number)
        await w.source.renew(w.who(OTHER))
        began = asyncio.get_running_loop().time()
        await asyncio.wait_for(w.source.begin(w.request(1, OTHER)), 100)
        assert asyncio.get_running_loop().time() - began < 1
        await w.source.close()

    in_virtual_time(main())


def test_a_former_lifes_version_is_finished(world: Run, in_virtual_time: Run) -> None:
    """All ranks had published it: its bytes stay until it is decided, whoever publishes next."""

    async def main() -> None:
        w = world(arenas=1)
        first = await w.publish(1)
        await asyncio.sleep(1)
        await w.source.renew(w.who(OTHER))
        second = asyncio.create_task(w.source.begin(w.request(1, OTHER)))
        await asyncio.sleep(5)
        assert not second.done()
        assert w.of(first).state is ReplicaState.FILLED
        w.client.ended.set()
        await asyncio.wait_for(second, 10)
        await w.source.close()

    in_virtual_time(main())


def test_a_late_answer_names_no_arena_of_another_publish(world: Run, in_virtual_time: Run) -> None:
    """publish 1 failed and its arena went to publish 2; then the answer to publish 1 comes."""

    async def main() -> None:
        w = world(arenas=1)
        w.client.slow[1] = 3.0
        first = await w.source.begin(w.request(1))
        (replica,) = w.replicas()
        await w.source.failed(first.id, local.PublishFailure(reason="Wrong", message="m"))
        second = await w.source.begin(w.request(2))
        await w.source.failed(first.id, local.PublishFailure(reason="Wrong", message="m"))
        assert (replica.owner, replica.state) == (second.id, ReplicaState.FILLING)
        await asyncio.sleep(5)
        assert replica.name == "1111111111111111.2"
        await w.source.close()

    in_virtual_time(main())


def test_the_end_of_an_order_seals_the_arena_of_that_version(world: Run, in_virtual_time: Run) -> None:
    """Ordered, written, ended: sealed under its version."""

    async def main() -> None:
        w = world()
        await w.publish(1)
        await w.source.order(w.order(1))
        await asyncio.sleep(5)
        version = Version(lineage="1" * 16, number=1, root="0" * 64)
        await w.source.end(OrderEnd(sync="s", term=1, writer=w.source.writer, version=version))
        assert [end.verified for end in w.client.paths("/v1/routes")] == [True]
        assert [(r.name, r.state, len(r.readers)) for r in w.replicas()] == [(version.name, ReplicaState.SEALED, 0)]
        await w.source.close()

    in_virtual_time(main())
