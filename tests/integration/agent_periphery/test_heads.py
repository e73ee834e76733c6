"""Whom an engine's agent obeys, by the head that a real API server holds, with an agent's rights and no more."""

from typing import Any

import pytest

from tests.integration.agent_periphery.test_from_slices import ROLLOUT, Operator, crds
from weightsync.errors import Refused
from weightsync_agent.peers import heads
from weightsync_agent.peers.heads import Heads
from weightsync_agent.plan_feed.from_slices import SlicesFeed

__all__ = ["crds"]
pytestmark = pytest.mark.apiserver


async def labels() -> dict[str, str]:
    """Of the engine's pod."""
    return ROLLOUT


async def test_only_whom_the_head_names_is_obeyed(
    space: Any, crds: None, relay: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator's coordinator in its term; not another pod, not another term; nobody new while the API is away."""
    monkeypatch.setattr(heads, "PAUSE_SECONDS", 0.0)
    pod = space.pod("rollout-0", ROLLOUT)
    obeyed = [(0, "")]
    async with space.api(pod, relay.url) as api:
        found = Heads(SlicesFeed(api, space.name, pod.uid, labels).head, lambda: obeyed[0])
        with pytest.raises(Refused, match="no head names this pod"):
            await found.check(1, "t0")
        operator = Operator(space)
        operator.head(coordinator="t0")
        await found.check(1, "t0")
        for term, coordinator in ((1, "t1"), (2, "t0"), (9, "t9")):
            with pytest.raises(Refused, match="the head names t0 for term 1"):
                await found.check(term, coordinator)
        obeyed[0] = (1, "t0")
        operator.head(term=2, coordinator="t1")
        await relay.down()
        await found.check(1, "t0")
        with pytest.raises(Refused, match="cannot read the head now"):
            await found.check(2, "t1")
        await relay.up()
        await found.check(2, "t1")
