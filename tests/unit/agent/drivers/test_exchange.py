"""What an engine reads from others and lends them, as its driver sees it."""

from types import SimpleNamespace
from typing import Any

import pytest

from weightsync.errors import Refused
from weightsync.wire.v1 import Capabilities, Grant, PassAnswer, PassRequest, Region, RelayEnd, RelayOrder
from weightsync_agent.drivers.exchange import Exchange

HERE = Capabilities(mooncake="1", transport="tcp")
REGION = Region(session="s", address=0, nbytes=10)
GRANT = Grant(grant="a" * 32, region=REGION, theirs=HERE)
PASS = PassRequest(term=1, reader="child", rank=0, grant="a" * 32, after=0, ours=HERE)
ORDER: Any = object()


class Reads:
    """A join, or a part of a relay, and what it was told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.hopes, self.applies, self.grows = True, False, None

    def look(self) -> None:
        self.told.append("look")

    def feeds(self, silent_after: float) -> bool:
        return silent_after == 3.0

    async def end(self, why: str) -> None:
        self.told.append(why)

    async def order(self, order: RelayOrder) -> RelayEnd:
        self.told.append(order)
        return RelayEnd(ended=True)

    async def close(self) -> None:
        self.told.append("close")


class Rank:
    """Passes what was asked for, unless its grant is none any more."""

    def __init__(self) -> None:
        self.error: Refused | None = None

    async def passes(self, request: PassRequest) -> PassAnswer:
        if self.error is not None:
            raise self.error
        return PassAnswer(region=REGION, buckets=())


def exchange(joining: Any = None, relaying: Any = None) -> tuple[Exchange, Rank]:
    rank = Rank()
    ranks: Any = SimpleNamespace(targets={0: rank}, remote={})
    return Exchange("me", ranks, lambda: None, joining=joining, relaying=relaying), rank


async def test_an_agent_that_reads_from_nobody_is_an_agent_all_the_same() -> None:
    """It needs no looks, holds nobody up, and says of its grants that it passes nothing on."""
    alone, _ = exchange()
    alone.look()
    alone.check_grant()
    await alone.end("a sync begins")
    assert (alone.hopes, alone.feeds(3.0), alone.told(GRANT).relays) == (False, False, False)
    with pytest.raises(Refused) as refused:
        await alone.relay(ORDER)
    assert refused.value.reason == "NoRelay"
    await alone.close()


async def test_joins_and_relays_end_before_an_arena_is_filled() -> None:
    """Each with the reason; and both are closed."""
    joins, relays = Reads(), Reads()
    both, _ = exchange(joins, relays)
    both.look()
    await both.end("a sync begins")
    assert (await both.relay(ORDER)).ended
    await both.close()
    assert joins.told == ["look", "a sync begins", "close"]
    assert relays.told == ["a sync begins", ORDER, "close"]
    assert (both.hopes, both.feeds(3.0), both.feeds(2.0)) == (True, True, False)


async def test_no_arena_is_granted_while_what_was_read_is_taken_over() -> None:
    """The coordinator asks again."""
    joins = Reads()
    joining, _ = exchange(joins)
    joining.check_grant()
    joins.applies = True
    with pytest.raises(Refused, match="takes over") as refused:
        joining.check_grant()
    assert (refused.value.reason, refused.value.status) == ("Fencing", 503)


async def test_who_reads_in_a_sync_is_counted_once_it_was_answered() -> None:
    """Joiners turn to engines that nobody reads from; a joiner's place it takes none."""
    relaying, rank = exchange(relaying=Reads())
    rank.error = Refused("no grant", reason="GrantClosed")
    with pytest.raises(Refused):
        await relaying.passes(PASS)
    assert relaying.holding._lending.readers.load(0.0) == 0
    rank.error = None
    assert (await relaying.passes(PASS)).region == REGION
    assert relaying.holding._lending.readers.load(0.0) == 1
    told = relaying.told(GRANT)
    assert (told.relays, told.lends, told.grant) == (True, False, GRANT.grant)
    with pytest.raises(Refused) as unknown:
        await relaying.passes(PASS.model_copy(update={"rank": 7}))
    assert unknown.value.reason == "UnknownRank"
