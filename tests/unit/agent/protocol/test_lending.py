"""What an engine lends, to whom, and until when."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.agent.protocol.test_joiner import BUCKETS, PROGRAM, decided
from weightsync.errors import Refused
from weightsync.version import Version
from weightsync.wire.v1 import Capabilities, Decided, HeldRank, Lease, LeaseRequest, Region
from weightsync_agent.protocol.lending import Lending
from weightsync_agent.protocol.readers import MOST, SECONDS

OURS = Capabilities(mooncake="1", transport="tcp")
ONE, TWO = decided(1), decided(2)


@dataclass
class Rank:
    """Which versions lie in its arenas, and which one grows there."""

    lies: set[Version] = field(default_factory=set)
    grows: Version | None = None

    def lendable(self, version: Version) -> object | None:
        return self if version in self.lies else None

    def growing(self, version: Version) -> object | None:
        return self if version == self.grows else None


class Engine:
    """Two ranks that serve version 1."""

    def __init__(self) -> None:
        self.ranks = {0: Rank({ONE.version}), 1: Rank({ONE.version})}
        self.programs = {0: PROGRAM, 1: PROGRAM}
        self.decided: Decided | None = ONE
        self.reads: Lease | None = None
        self.gathered = 0
        self.fails: Refused | None = None
        self.lending = Lending("me", self)

    def part(self, rank: int, request: LeaseRequest, growing: Lease | None) -> HeldRank:
        self.gathered += 1
        if self.fails is not None:
            raise self.fails
        region = Region(session="s", address=0, nbytes=100)
        return HeldRank(rank=rank, program=PROGRAM, region=region, buckets=BUCKETS)

    def goes_over(self) -> None:
        """It serves version 2, from its other arenas."""
        for rank in self.ranks.values():
            rank.lies.add(TWO.version)
        self.decided = TWO

    def ask(self, reader: str = "r", version: Version = ONE.version, now: float = 0.0, **more: Any) -> Lease:
        request = LeaseRequest(
            reader=reader, version=version, programs=more.pop("programs", self.programs), ours=OURS, **more
        )
        return self.lending.lease(request, now)

    def refusal(self, *args: Any, **more: Any) -> str:
        with pytest.raises(Refused) as refused:
            self.ask(*args, **more)
        return refused.value.reason


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_a_lease_lasts_as_long_as_it_is_asked_for(engine: Engine) -> None:
    """And ends by itself where its reader is silent: the place is another's."""
    readers = [f"r{n}" for n in range(MOST)]
    for reader in readers:
        assert engine.ask(reader).seconds == SECONDS
    for turn in range(1, 9):
        now = turn * SECONDS / 2
        engine.ask(readers[0], now=now)
        if now < SECONDS:
            assert engine.refusal("late", now=now) == "Busy"
    assert engine.ask("late", now=now).ranks
    assert engine.refusal("later", now=now) == "Busy"
    assert [engine.lending.readers.reads(each, now) for each in (readers[0], readers[-1], "late")] == [
        True,
        False,
        True,
    ]


def test_who_reads_goes_on_when_the_engine_goes_over_to_the_next_version(engine: Engine) -> None:
    """As long as it asks in time, and it lies here. Nobody else is lent that one any more."""
    engine.ask()
    engine.goes_over()
    assert engine.ask(now=9.0).decided == ONE
    assert engine.refusal("other", now=9.0) == "NotHeld"
    assert engine.ask("other", TWO.version, now=9.0).decided == TWO
    assert engine.ask(now=18.0).decided == ONE
    assert engine.refusal(now=18.0 + SECONDS) == "NotHeld"


def test_whose_version_is_filled_anew_reads_no_more(engine: Engine) -> None:
    """A sync comes first. It gets the place back only for what is there."""
    engine.ask()
    engine.goes_over()
    engine.ranks[1].lies.discard(ONE.version)
    assert engine.refusal(now=1.0) == "NotHeld"
    assert engine.lending.readers.count(1.0) == 0
    engine.ranks[1].lies.add(ONE.version)
    assert engine.refusal(now=1.0) == "NotHeld"


def test_who_says_that_it_reads_no_more_is_forgotten(engine: Engine) -> None:
    """With what it was lent."""
    engine.ask()
    engine.lending.end("r", 1.0)
    engine.goes_over()
    assert engine.refusal(now=1.0) == "NotHeld"


def test_what_it_reads_itself_is_lent_once_all_ranks_read_and_to_who_waits(engine: Engine) -> None:
    """With how far behind a whole one that is; whoever reads it goes on once all of it is here."""
    engine.ranks[0].grows = TWO.version
    part = HeldRank(rank=0, program=PROGRAM, region=Region(session="h", address=0, nbytes=100), buckets=BUCKETS)
    ranks = (part, part.model_copy(update={"rank": 1}))
    engine.reads = Lease(uid="h", decided=TWO, seconds=9.0, ranks=ranks, behind=3)
    assert engine.lending.held(0.0).grows is None
    assert engine.refusal(version=TWO.version, waits=True) == "NotHeld"
    engine.ranks[1].grows = TWO.version
    held = engine.lending.held(0.0)
    assert (held.decided, held.grows, held.behind) == (ONE, TWO, 4)
    assert engine.refusal(version=TWO.version) == "NotHeld"
    assert engine.ask(version=TWO.version, waits=True).behind == 4
    engine.reads = None
    engine.goes_over()
    assert engine.ask(version=TWO.version, waits=True, now=5.0).behind == 0


def test_who_finds_no_place_costs_no_more_than_a_look(engine: Engine) -> None:
    """Of a thousand that ask nearly all find none."""
    for n in range(MOST):
        engine.ask(f"r{n}")
    engine.gathered = 0
    assert engine.refusal("late") == "Busy"
    assert engine.gathered == 0


def test_a_place_that_cannot_be_used_is_free_again(engine: Engine) -> None:
    """Its reader is of another release, say."""
    engine.fails = Refused("another transport", reason="CapabilityMismatch")
    assert [engine.refusal(f"r{n}") for n in range(MOST + 1)] == ["CapabilityMismatch"] * (MOST + 1)
    engine.fails = None
    assert engine.ask().ranks


def test_of_an_engine_of_several_pods_nothing_is_lent(engine: Engine) -> None:
    """Nor to one of another layout."""
    assert engine.refusal(programs={0: PROGRAM}) == "LayoutMismatch"
    engine.ranks = {}
    assert engine.lending.held(0.0).decided is None
    assert engine.refusal() == "NotHeld"
