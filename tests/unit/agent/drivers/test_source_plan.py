"""A trainer rank whose agent has no plan yet, beside ranks whose agents have theirs."""

import asyncio
from collections.abc import Callable
from typing import Any

Run = Callable[..., Any]


def without_a_plan(w: Any, world_size: int = 2) -> Any:
    """What comes as the first one."""
    w.source.who = w.source.who.model_copy(update={"world_size": world_size})
    plan, w.plan = w.plan, None
    w.client.ended.set()
    return plan


async def outcome(w: Any, sequence: int, seconds: float = 0.1) -> Any:
    begun = await w.source.begin(w.request(sequence))
    return await w.source.outcome(begun.id, seconds)


def test_a_rank_waits_for_its_first_plan_while_others_wait_for_it(world: Run, in_virtual_time: Run) -> None:
    """Theirs came a moment earlier: they would wait for it to their deadline, and it be told that nobody listens."""

    async def main() -> None:
        w = world()
        plan = without_a_plan(w)
        begun = await w.source.begin(w.request(1))
        assert not (await w.source.outcome(begun.id, 5.0)).ended
        assert w.client.paths("/v1/publishes") == []
        w.plan = plan
        w.planned.set()
        ended = await w.source.outcome(begun.id, 5.0)
        assert (ended.ended, ended.reason) == (True, "")
        assert len(w.client.paths("/v1/publishes")) == 1
        await w.source.close()

    in_virtual_time(main())


def test_where_none_comes_it_says_who_lacks_what_and_holds_up_no_later_step(world: Run, in_virtual_time: Run) -> None:
    """No WeightSync selects the trainer: training goes on. Another Publisher waits anew."""

    async def main() -> None:
        w = world()
        without_a_plan(w)
        now = asyncio.get_running_loop().time
        began = now()
        ended = await outcome(w, 1, 100.0)
        assert 50.0 < now() - began < 70.0
        assert ended.reason == "NoTargets"
        assert "rank 0 of 2, pod u" in ended.message
        began = now()
        assert (await outcome(w, 2, 100.0)).reason == "NoTargets"
        assert now() - began < 1.0
        await w.source.renew(w.source.who.model_copy(update={"nonce": "b" * 16}))
        begun = await w.source.begin(w.request(1, "b" * 16))
        assert not (await w.source.outcome(begun.id, 30.0)).ended
        await w.source.close()

    in_virtual_time(main())


def test_a_trainer_of_one_rank_waits_for_nobody(world: Run, in_virtual_time: Run) -> None:
    """Nobody waits for it."""

    async def main() -> None:
        w = world()
        without_a_plan(w, 1)
        assert (await outcome(w, 1, 0.5)).reason == "NoTargets"
        await w.source.close()

    in_virtual_time(main())
