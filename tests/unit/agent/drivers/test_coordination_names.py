"""Publishes and names at a coordinator while a new plan spreads: nobody waits for a stage that will not come."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from weightsync.announcement import SourceRank, TargetRank
from weightsync.errors import Refused
from weightsync.plan import Engine, Plan, Route, Source, Strategy, Target
from weightsync.testing.programs import plain_program
from weightsync.wire.v1 import Capabilities, NamesAnswer, NamesRequest, PublishAnswer, PublishRequest, WriterId
from weightsync_agent.drivers.coordination import Coordination
from weightsync_agent.peers.client import Unreachable

Run = Callable[..., Any]
OLD = plain_program({"a": ("float32", (4,)), "b": ("float32", (4,))})
NEW = plain_program({"a": ("float32", (4,)), "b": ("float16", (4,))})
PROGRAMS = {program.digest: program for program in (OLD, NEW)}
DEADLINE = 60
NONCES = ("a" * 16, "b" * 16)


class Nobody:
    """No engine answers: only what the coordinator tells the sources is looked at."""

    async def call(self, address: str, path: str, kind: type, body: Any = None, *, seconds: float) -> Any:
        raise Unreachable(f"{address} does not answer")

    persist = call


def engine(program: str) -> Engine:
    routes = tuple(Route(stage=stage, source=f"pod-{stage}", rank=stage) for stage in (0, 1))
    rank = TargetRank(rank=0, layout="1" * 32, program=program)
    target = Target(uid=program, pod=program, address=program, rank=rank, routes=routes)
    return Engine(name=program, leader=program, address=program, incarnation="1", targets=(target,))


def coordination(*programs: str) -> Coordination:
    """Of a trainer of two stages; its plan has an engine of each program."""

    async def get(digest: str) -> Any:
        return PROGRAMS[digest]

    given: Any = SimpleNamespace(client=Nobody(), programs=SimpleNamespace(get=get), read=lambda: None)
    made = Coordination(
        "pod-0",
        Capabilities(mooncake="1", transport="tcp"),
        client=given.client,
        programs=given.programs,
        decisions=given,
        publish_report=lambda report: None,
        stall_seconds=5.0,
    )
    sources = tuple(
        Source(
            uid=f"pod-{rank}", pod=f"pod-{rank}", address=f"pod-{rank}",
            ranks=(SourceRank(rank=rank, world_size=2, stage=rank, stages=2, nonce=NONCES[rank]),),
        )
        for rank in (0, 1)
    )  # fmt: skip
    made.plan(
        Plan(
            name="ns/x", term=1, generation=1, coordinator="pod-0", strategy=Strategy(deadline_seconds=DEADLINE),
            sources=sources, engines=tuple(map(engine, programs)),
        )
    )  # fmt: skip
    return made


def publish(rank: int, *programs: str) -> PublishRequest:
    return PublishRequest(
        writer=WriterId(uid=f"pod-{rank}", rank=rank), world_size=2, stage=rank, stages=2, nonce=NONCES[rank],
        sequence=1, programs=programs,
    )  # fmt: skip


async def names(made: Coordination, stage: int, program: str, owned: str) -> NamesAnswer:
    writer = WriterId(uid=f"pod-{stage}", rank=stage)
    return await made.names(NamesRequest(term=1, writer=writer, stage=stage, program=program, names=tuple(owned)))


def test_ranks_are_told_the_programs_that_all_of_them_fill(in_virtual_time: Run) -> None:
    """The coordinator has the new engine in its plan, rank 1 not yet: the version is without it."""

    async def main() -> None:
        made = coordination(OLD.digest, NEW.digest)
        both: Any = await asyncio.gather(
            made.publishes(publish(0, OLD.digest, NEW.digest)), made.publishes(publish(1, OLD.digest))
        )
        assert [answer.programs for answer in both] == [(OLD.digest,)] * 2
        assert isinstance(both[0], PublishAnswer)
        again = await made.publishes(publish(1, OLD.digest))
        assert again == both[1]
        await made.close()

    in_virtual_time(main())


def test_stages_meet_over_a_program_whose_engine_has_left_meanwhile(in_virtual_time: Run) -> None:
    """They fill it in this version, whatever the plan has come to say."""

    async def main() -> None:
        made = coordination(OLD.digest)
        await asyncio.gather(made.publishes(publish(0, OLD.digest)), made.publishes(publish(1, OLD.digest)))
        plan = made.machine.plan
        assert plan is not None
        made.plan(plan.model_copy(update={"generation": 2, "engines": (engine(NEW.digest),)}))
        both: Any = await asyncio.gather(names(made, 0, OLD.digest, "a"), names(made, 1, OLD.digest, "b"))
        assert [answer.owned for answer in both] == [("a",), ("b",)]
        await made.close()

    in_virtual_time(main())


def test_a_rank_that_is_missing_is_named_with_its_pod(in_virtual_time: Run) -> None:
    """Whoever looks for it needs the pod."""

    async def main() -> None:
        made = coordination(OLD.digest)
        with pytest.raises(Refused, match=r"rank 1 \(pod pod-1\) did not call publish\(\)") as missing:
            await made.publishes(publish(0, OLD.digest))
        assert missing.value.reason == "RanksMissing"
        await made.close()

    in_virtual_time(main())
