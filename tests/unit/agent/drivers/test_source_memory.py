"""The memory of a source's arenas: given back when nobody wants them, and refused in words where there is none."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weightsync.errors import Refused
from weightsync.testing.programs import plain_program
from weightsync.version import Version
from weightsync.wire.v1 import OrderEnd
from weightsync_agent.arenas.sizing import HEADROOM

Run = Callable[..., Any]
PROGRAM = plain_program({"a": ("float32", (1024,)), "b": ("float32", (1024,))})  # of the fixture's world
OTHER = plain_program({"a": ("float32", (1024,)), "b": ("float16", (1024,))})


async def sealed(w: Any) -> None:
    await w.publish(1, digests=False)
    await w.source.order(w.order(1))
    await asyncio.sleep(3)
    version = Version(lineage="1" * 16, number=1, root="0" * 64)
    await w.source.end(OrderEnd(sync="s", term=1, writer=w.source.writer, version=version))


def test_another_layout_gets_the_room_of_one_that_nobody_wants(
    world: Run, in_virtual_time: Run, tmp_path: Path
) -> None:
    """Engines were replaced by others: the old arena goes, also its file and the worker's mapping of it."""

    async def main() -> None:
        w = world(limit=HEADROOM + PROGRAM.layout.nbytes + 100)
        await sealed(w)
        path = w.arenas.path((PROGRAM.digest, 0))
        assert path in w.workers[0].attached
        w.serve(OTHER.digest)
        answer = await w.source.begin(w.request(2))
        assert [replica.program for replica in answer.replicas] == [OTHER.digest]
        await asyncio.sleep(1)
        assert not path.exists()
        assert path not in w.workers[0].attached
        await w.source.close()

    in_virtual_time(main())


def test_a_publish_that_does_not_fit_says_what_to_raise(world: Run, in_virtual_time: Run) -> None:
    """And the next one, where there is room, is served."""

    async def main() -> None:
        w = world(limit=HEADROOM + OTHER.layout.nbytes)
        with pytest.raises(Refused, match="raise the agent container's limit") as refused:
            await w.source.begin(w.request(1))
        assert refused.value.reason == "NoRoom"
        w.serve(OTHER.digest)
        assert (await w.source.begin(w.request(2))).replicas
        await w.source.close()

    in_virtual_time(main())


def test_a_new_arena_at_an_old_path_is_mapped_anew(world: Run, in_virtual_time: Run) -> None:
    """The program comes back: no worker writes from the file that is gone."""

    async def main() -> None:
        w = world(limit=HEADROOM + PROGRAM.layout.nbytes + 100)
        await sealed(w)
        log = w.workers[0].mapped
        w.serve(OTHER.digest)
        other = await w.source.begin(w.request(2))
        await w.source.failed(other.id, w.failure("gone"))
        w.serve(PROGRAM.digest)
        await w.publish(3, digests=False)
        path = w.arenas.path((PROGRAM.digest, 0))
        assert [(what, where == path) for what, where in log] == [
            ("attach", True),
            ("detach", True),
            ("attach", True),
        ]
        await w.source.close()

    in_virtual_time(main())


def test_a_record_that_cannot_be_written_loses_only_the_restart(world: Run, in_virtual_time: Run) -> None:
    """The volume is full: the version is sealed all the same, and serves repairs."""

    async def main() -> None:
        w = world()
        await w.publish(1)
        path = w.arenas.path((PROGRAM.digest, 0))
        path.with_name(path.name + ".sealed").mkdir()
        await w.source.order(w.order(1))
        await asyncio.sleep(3)
        version = Version(lineage="1" * 16, number=1, root="0" * 64)
        await w.source.end(OrderEnd(sync="s", term=1, writer=w.source.writer, version=version))
        await w.source.order(w.order(1, "r"))
        await asyncio.sleep(3)
        assert [end.verified for end in w.client.paths("/v1/routes")] == [True, True]
        await w.source.close()

    in_virtual_time(main())
