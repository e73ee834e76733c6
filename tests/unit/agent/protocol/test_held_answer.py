"""What a coordinator answers engines that join while a sync runs, and what that costs it."""

from typing import Any

import pytest

from tests.unit.agent.protocol.test_relaying import LINEAGE, NAMES, PROGRAM, WRITER, World, engine
from weightsync.errors import Refused
from weightsync.version import Version
from weightsync.wire.v1 import PublishRequest
from weightsync_agent.protocol import events as e
from weightsync_agent.protocol import relaying
from weightsync_agent.protocol.coordinator import CoordinatorState
from weightsync_agent.protocol.gather import Gathered
from weightsync_agent.protocol.held_answer import COUNTED_SECONDS, HeldAnswer
from weightsync_agent.protocol.holders import ASKED, ring, whom
from weightsync_agent.protocol.standing import Sealed

VERSION = Version(lineage=LINEAGE, number=1, root="4" * 64)


class Coordinating(World):
    """A coordinator that has decided a version, and what it answers."""

    def __init__(self, *names: str, **more: Any) -> None:
        super().__init__(*(engine(name) for name in names or NAMES), **more)
        self.machine.sealed = Sealed(VERSION, "", {PROGRAM: "5" * 64}, 1)
        self.now = self.machine.ask_until
        self.answer = HeldAnswer(self.machine)

    def feeders(self, reader: str = "r") -> list[str]:
        return sorted(self.answer.held(reader, self.now).feeders)

    def publish(self) -> "Coordinating":
        request = PublishRequest(writer=WRITER, world_size=1, stage=0, stages=1, nonce=LINEAGE, sequence=9)
        self.feed(e.Published(Gathered(LINEAGE, 9, "", {0: request}, self.now, frozenset({PROGRAM}))))
        return self


def test_joiners_are_told_who_passes_it_on() -> None:
    """Not known until all have granted; then those that others still read from. Without a relay there is nothing."""
    world = Coordinating()
    idle = world.answer.held("r", world.now)
    assert idle.decided is not None
    assert (idle.decided.version, idle.syncing, idle.begins, idle.feeders) == (VERSION, False, False, ())
    asking = Coordinating().publish()
    held = asking.answer.held("r", asking.now)
    assert (held.syncing, held.begins, held.feeders) == (True, True, ())
    fed = world.begin().fed()
    feeders = sorted({by for by in fed.values() if by != "src"})
    assert (world.feeders(), world.answer.held("r", world.now).begins) == (feeders, False)
    world.shard().relayed(*(name for name, by in fed.items() if by == feeders[0]))
    world.now += COUNTED_SECONDS
    assert world.feeders() == feeders[1:]
    alone = Coordinating(fanout=0).publish()
    assert alone.machine.state is CoordinatorState.GRANTING
    assert not alone.answer.held("r", alone.now).begins


def test_nothing_is_answered_while_engines_are_still_asked() -> None:
    """One of them may have been told to serve another version."""
    world = Coordinating()
    with pytest.raises(Refused) as unknown:
        world.answer.held("r", 0.0)
    assert unknown.value.reason == "NotKnown"
    world.machine.sealed = None
    assert world.answer.held("r", world.now).decided is None


def test_who_passes_it_on_is_counted_now_and_then_and_at_once_where_the_sync_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand that join ask fifteen hundred times a second: the sync that runs must not wait for them."""
    world = Coordinating().begin()
    counted: list[str] = []
    count = relaying.feeders

    def counts(sync: Any) -> list[set[str]]:
        counted.append(sync.id)
        return count(sync)

    monkeypatch.setattr(relaying, "feeders", counts)
    for _ in range(100):
        world.feeders()
        world.now += COUNTED_SECONDS / 200
    assert len(counted) == 1
    world.now += COUNTED_SECONDS
    assert world.feeders()
    assert len(counted) == 2
    fed = world.fed()
    world.shard().written(*(name for name, by in fed.items() if by == "src"))
    world.relayed(*(name for name, by in fed.items() if by != "src"))
    assert world.machine.state is not CoordinatorState.STAGING
    assert world.feeders() == []


def test_a_joiner_is_told_of_a_bounded_number_and_of_all_that_it_could_turn_to() -> None:
    """Two joiners of others. A thousand uids are twenty kilobytes."""
    names = [f"e{n:03}" for n in range(300)]
    world = Coordinating(*names).begin()
    feeders = {by for by in world.fed().values() if by != "src"}
    assert len(feeders) > 2 * ASKED
    told = [set(world.feeders(reader)) for reader in ("r", "s")]
    assert [len(each) for each in told] == [ASKED, ASKED]
    assert told[0] != told[1]
    asked = set(whom("r", ring(names), ASKED))
    assert asked & feeders == asked & told[0]


def test_engines_of_another_layout_take_no_place() -> None:
    """A joiner asks engines of its own layouts only: of each so many are told."""
    few = [engine(name, program="9" * 32) for name in NAMES]
    world = Coordinating(*(f"e{n:03}" for n in range(300)))
    for each in few:
        world.engines[each.name] = each
    assert world.machine.plan is not None
    world.feed(e.PlanChanged(world.machine.plan.model_copy(update={"engines": tuple(world.engines.values())})))
    world.now = world.machine.ask_until
    world.begin()
    feeders = {by for name, by in world.fed().items() if by != "src" and name in NAMES}
    assert feeders
    assert len(feeders & set(world.feeders())) == len(feeders)
