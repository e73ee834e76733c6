"""What a source rank tells of its names, and what it leaves out of a publish."""

from collections.abc import Callable
from typing import Any

import pytest

from weightsync.errors import Refused
from weightsync.testing.programs import plain_program
from weightsync.wire import local
from weightsync.wire.v1 import PublishAnswer

Run = Callable[..., Any]
PROGRAM = plain_program({"a": ("float32", (1024,)), "b": ("float32", (1024,))}).digest
OTHER = plain_program({"a": ("float32", (1024,)), "b": ("float16", (1024,))}).digest
NAMES = local.NamesReport(names=("a", "b"))


def of_two_stages(w: Any, *programs: str) -> None:
    w.source.who = w.source.who.model_copy(update={"stages": 2})
    w.serve(*programs)
    w.client.ended.set()


def answers(*programs: str) -> Callable[[Any], PublishAnswer]:
    return lambda body: PublishAnswer(lineage="1" * 16, number=body.sequence, life="x", programs=programs)


def test_a_program_that_a_stage_does_not_fill_is_left_out(world: Run, in_virtual_time: Run) -> None:
    """Nobody would come to settle its names: they are told with the first publish that all stages fill it in."""

    async def main() -> None:
        w = world()
        of_two_stages(w, PROGRAM, OTHER)
        w.client.answers["/v1/publishes"] = answers(PROGRAM)
        first = await w.source.begin(w.request(1))
        reply = await w.source.names(first.id, NAMES)
        assert {r.program: len(r.buckets) for r in reply.replicas} == {PROGRAM: 2, OTHER: 0}
        assert [body.program for body in w.client.paths("/v1/names")] == [PROGRAM]
        assert [body.programs for body in w.client.paths("/v1/publishes")] == [tuple(sorted((PROGRAM, OTHER)))]
        w.fill(first.id)
        await w.source.copied(first.id)
        w.client.answers["/v1/publishes"] = answers(PROGRAM, OTHER)
        second = await w.source.begin(w.request(2))
        assert {r.program: len(r.buckets) for r in second.replicas} == {PROGRAM: 2, OTHER: 0}
        reply = await w.source.names(second.id, NAMES)
        assert all(r.buckets for r in reply.replicas)
        assert [body.program for body in w.client.paths("/v1/names")] == [PROGRAM, OTHER]
        await w.source.close()

    in_virtual_time(main())


def test_without_a_version_no_names_are_told(world: Run, in_virtual_time: Run) -> None:
    """A rank is missing: copying ends without an error, and the outcome says why."""

    async def main() -> None:
        w = world()
        of_two_stages(w, PROGRAM)

        def missing(body: Any) -> PublishAnswer:
            raise Refused("ranks [1] did not call publish()", reason="RanksMissing")

        w.client.answers["/v1/publishes"] = missing
        begun = await w.source.begin(w.request(1))
        reply = await w.source.names(begun.id, NAMES)
        assert [r.buckets for r in reply.replicas] == [()]
        await w.source.copied(begun.id)
        assert (await w.source.outcome(begun.id, 1.0)).reason == "RanksMissing"
        assert w.client.paths("/v1/names") == []
        await w.source.close()

    in_virtual_time(main())


@pytest.mark.parametrize("programs", [(PROGRAM,), ()], ids=["in the version", "not in the version"])
def test_a_trainer_of_one_stage_asks_nobody(world: Run, in_virtual_time: Run, programs: tuple[str, ...]) -> None:
    """It owns every name, and waits for no version to know it."""

    async def main() -> None:
        w = world()
        w.client.answers["/v1/publishes"] = answers(*programs)
        w.client.ended.set()
        begun = await w.source.begin(w.request(1))
        (replica,) = (await w.source.names(begun.id, NAMES)).replicas
        assert (len(replica.buckets), replica.owned) == (2, ("a", "b"))
        assert w.client.paths("/v1/names") == []
        await w.source.close()

    in_virtual_time(main())
