"""Whether an engine's parameters are what it serves: all of its ranks are compared, and none changes meanwhile."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from weightsync.errors import EngineError, Refused
from weightsync.version import Version
from weightsync_agent.drivers.comparing import serves

VERSION = Version(lineage="1" * 16, number=1, root="2" * 64)


class World:
    """An engine of rank 0 here and rank 1 in another pod; or, of the same ranks, in Direct mode."""

    def __init__(self, *, grants: Mapping[int, str] | None = None, direct: Mapping[int, Any] | None = None) -> None:
        held = {0: "a", 1: "b"} if grants is None else grants
        self.open: list[str] = []  # what holds now
        self.during: list[str] = []  # what held while the engine was asked
        self.asked: list[tuple[int, str, str]] = []
        self.equal = {0: True, 1: True}
        header = SimpleNamespace(header=SimpleNamespace(grant=held[0]))
        arena = SimpleNamespace(arena=header) if held[0] else None
        self.ranks: Any = SimpleNamespace(
            direct=direct or {},
            remote={1: SimpleNamespace(grant_of=lambda version: held[1])},
            targets={0: SimpleNamespace(holding=lambda version: arena)},
            kept=lambda grants: self._holds("kept", grants),
            holding=lambda version, grants: self._holds("holding", grants),
            ref=lambda rank, grant, root: (rank, grant, root),
        )
        self.adapter: Any = SimpleNamespace(standstill=lambda: self._holds("standstill"), readback=self._readback)

    @asynccontextmanager
    async def _holds(self, what: str, grants: Iterable[tuple[int, str]] = ()) -> AsyncIterator[None]:
        self.open.append(what)
        try:
            yield
        finally:
            self.open.remove(what)

    async def _readback(self, refs: list[tuple[int, str, str]]) -> list[Any]:
        self.asked, self.during = refs, list(self.open)
        return [SimpleNamespace(equal=self.equal[rank]) for rank, _, _ in refs]

    async def serves(self) -> bool:
        return await serves(self.ranks, self.adapter, VERSION)


@pytest.mark.parametrize("differs", [None, 0, 1], ids=["all are", "its own is not", "another pod's is not"])
async def test_every_rank_is_compared_with_its_replica_while_all_stand_still(differs: int | None) -> None:
    """Here and in other pods, under the grants that hold the version; afterwards nothing is kept."""
    world = World()
    if differs is not None:
        world.equal[differs] = False
    assert await world.serves() is (differs is None)
    assert world.asked == [(0, "a", VERSION.root), (1, "b", VERSION.root)]
    assert (world.during, world.open) == (["kept", "holding", "standstill"], [])


@pytest.mark.parametrize("lacks", [0, 1])
async def test_a_replica_that_is_filled_anew_says_nothing(lacks: int) -> None:
    """The engine serves on; it is not asked."""
    world = World(grants={0: "a", 1: "b"} | {lacks: ""})
    with pytest.raises(Refused, match=f"rank {lacks}") as refused:
        await world.serves()
    assert (refused.value.reason, world.asked) == ("Busy", [])


async def test_in_direct_mode_what_was_written_is_what_counts() -> None:
    """There is no replica: a rank that finds other digests is not the version, whatever the others are."""
    found: list[int] = []

    def rank(number: int, error: EngineError | None = None) -> Any:
        async def read_back() -> None:
            found.append(number)
            if error is not None:
                raise error

        return SimpleNamespace(read_back=read_back)

    assert await World(direct={0: rank(0), 1: rank(1)}).serves()
    assert found == [0, 1]
    assert not await World(direct={0: rank(0), 1: rank(1, EngineError("rank 1: bucket 7 differs"))}).serves()
