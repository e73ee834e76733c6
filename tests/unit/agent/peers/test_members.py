"""Whom the plan names as a source, and who is a stranger with a valid token."""

import asyncio

import pytest

from weightsync.announcement import SourceRank
from weightsync.errors import Refused
from weightsync.plan import Plan, Source
from weightsync_agent.peers.members import KEPT, KEPT_SECONDS, Members


def plan(*uids: str) -> Plan:
    """A plan of these sources."""
    ranks = (SourceRank(rank=0, world_size=1, nonce="0" * 16),)
    sources = tuple(Source(uid=uid, pod=uid, address="h:1", ranks=ranks) for uid in uids)
    return Plan(name="p", term=1, generation=1, sources=sources)


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_source_of_the_plan_is_a_member() -> None:
    """At once, for both questions."""
    members = Members()
    await members.put(plan("t0", "t1"))
    members.known("t1")
    await members.joined("t1", 0.0)


@pytest.mark.parametrize(
    "uid", ["", "t9", "T0", "t0 ", "x" * 100_000], ids=["none", "another", "case", "blank", "huge"]
)
async def test_a_stranger_is_refused_by_name(uid: str) -> None:
    """403 that says how many the plan names, in a sentence of bounded length."""
    members = Members()
    await members.put(plan("t0"))
    with pytest.raises(Refused, match=r"is no source of this plan, which names 1") as caught:
        members.known(uid)
    assert (caught.value.status, caught.value.reason) == (403, "NotInPlan")
    assert len(str(caught.value)) < 500
    with pytest.raises(Refused):
        await members.joined(uid, 0.0)


async def test_a_source_that_the_plan_will_name_is_waited_for() -> None:
    """Plans come to their readers at different times."""
    members = Members()
    await members.put(plan("t0"))
    waiting = asyncio.create_task(members.joined("t1", 10.0))
    await asyncio.sleep(0)
    await members.put(plan("t0"))
    assert not waiting.done()
    await members.put(plan("t0", "t1"))
    await waiting


async def test_one_that_left_is_listened_to_for_a_while_and_joins_no_more() -> None:
    """It still says how its writes ended; it starts nothing new; after a while it is a stranger."""
    clock = Clock()
    members = Members(clock)
    await members.put(plan("t0", "t1"))
    await members.put(plan("t0"))
    members.known("t1")
    with pytest.raises(Refused):
        await members.joined("t1", 0.0)
    clock.now = KEPT_SECONDS + 1
    with pytest.raises(Refused):
        members.known("t1")
    await members.put(plan("t1"))
    members.known("t1")


async def test_memory_of_those_that_left_is_bounded() -> None:
    """The oldest are forgotten first."""
    members = Members()
    for number in range(3):
        await members.put(plan(*(f"{number}-{index}" for index in range(KEPT // 2 + 1))))
    await members.put(plan("t0"))
    with pytest.raises(Refused):
        members.known("0-0")
    members.known("2-0")
