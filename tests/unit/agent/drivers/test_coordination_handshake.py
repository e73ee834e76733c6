"""The coordinator's handshake with a target that cannot grant just now."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from weightsync.errors import Refused
from weightsync.wire.v1 import Capabilities, GrantRequest, WriterId
from weightsync_agent.drivers.coordination import FENCE_SECONDS, Coordination, handshake_patience
from weightsync_agent.protocol import events as e

STALL = 5.0
TARGET: Any = SimpleNamespace(address="10.0.0.1:8960", pod="engine-0")
REQUEST = GrantRequest(
    term=1, coordinator="pod-0", sync="1" * 32, rank=0, layout="1" * 32, program="2" * 32, lineage="3" * 16, number=1,
    writers=(WriterId(uid="pod-0", rank=0),), ours=Capabilities(mooncake="1", transport="tcp"),
)  # fmt: skip
GRANT: Any = object()


class Engine:
    """Its target refuses for so many seconds, and grants then."""

    def __init__(self, reason: str, seconds: float) -> None:
        self.reason = reason
        self.seconds = seconds

    async def call(self, address: str, path: str, kind: type, body: Any = None, *, seconds: float) -> Any:
        if asyncio.get_running_loop().time() < self.seconds:
            raise Refused("rank 0 is applying; ask again", reason=self.reason)
        return GRANT


def handshake(in_virtual_time: Callable[..., Any], engine: Engine, *, ends: float = 1000.0) -> list[object]:
    """What the machine is told. ends: when its sync does."""
    given: Any = SimpleNamespace(client=engine, programs=None, read=lambda: None)
    told: list[object] = []

    async def main() -> None:
        made = Coordination(
            "pod-0",
            REQUEST.ours,
            client=given.client,
            programs=given.programs,
            decisions=given,
            publish_report=lambda report: None,
            stall_seconds=STALL,
        )
        made.machine.runs = lambda sync: asyncio.get_running_loop().time() < ends  # type: ignore[method-assign]
        made._feed = told.append  # type: ignore[method-assign, assignment]
        await made._ask_grant(e.AskGrant("engine-0", TARGET, REQUEST))
        await made.close()

    in_virtual_time(main())
    return told


@pytest.mark.parametrize(("reason", "seconds"), [("Busy", STALL - 1), ("Fencing", STALL + FENCE_SECONDS - 1)])
def test_an_engine_that_still_applies_is_waited_for(
    in_virtual_time: Callable[..., Any], reason: str, seconds: float
) -> None:
    """It ends what it does, and is written to in this sync."""
    assert handshake(in_virtual_time, Engine(reason, seconds)) == [
        e.GrantGiven(REQUEST.sync, "engine-0", TARGET, GRANT)
    ]


@pytest.mark.parametrize(
    ("reason", "seconds"), [("Busy", STALL + 1), ("Fencing", STALL + FENCE_SECONDS + 1), ("LayoutMismatch", 0.1)]
)
def test_one_that_does_not_end_is_left_out_with_its_reason(
    in_virtual_time: Callable[..., Any], reason: str, seconds: float
) -> None:
    """The others do not wait longer for it than for one that is silent."""
    (told,) = handshake(in_virtual_time, Engine(reason, seconds))
    assert isinstance(told, e.GrantRefused)
    assert (told.reason, told.rank) == (reason, 0)
    assert "handshake with engine-0, rank 0" in told.message


@pytest.mark.parametrize("reason", ["Busy", "Fencing"])
def test_nobody_is_asked_again_for_a_sync_that_has_ended(in_virtual_time: Callable[..., Any], reason: str) -> None:
    """What it were granted would be taken from the sync that runs by then."""
    (told,) = handshake(in_virtual_time, Engine(reason, 3.0), ends=2.0)
    assert isinstance(told, e.GrantRefused)


@pytest.mark.parametrize(("reason", "seconds"), [("Busy", 5.0), ("Fencing", 20.0), ("LayoutMismatch", 0.0)])
def test_patience_is_for_what_passes(reason: str, seconds: float) -> None:
    """What is wrong stays wrong: it is told at once."""
    assert handshake_patience(reason, STALL) == seconds
