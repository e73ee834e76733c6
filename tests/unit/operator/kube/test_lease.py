"""The Lease's lock, where the API server is slow."""

import asyncio
from typing import Any

import pytest

from weightsync_operator.kube import lease


class Silent:
    """Takes every call and answers none."""

    async def get(self, _: str) -> Any:
        await asyncio.Event().wait()

    async def create(self, _: str, __: Any) -> Any:
        await asyncio.Event().wait()

    async def replace(self, _: str, __: Any) -> Any:
        await asyncio.Event().wait()


async def test_a_call_that_hangs_is_a_failed_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal that is waited for longer than the Lease lasts would leave two operators at work."""
    monkeypatch.setattr(lease, "CALL_SECONDS", 0.01)
    server: Any = Silent()
    lock = lease.Lock(server, "operator", "weightsync-system", "one")
    record = lease.record_of({"holderIdentity": "one", "leaseDurationSeconds": 15})
    async with asyncio.timeout(30):
        found, error = await lock.get("operator", "weightsync-system")
        assert not found
        assert "says nothing of the Lease" in str(error)
        assert not await lock.create("operator", "weightsync-system", record)
        assert not await lock.update("operator", "weightsync-system", record)


def test_the_last_try_ends_before_others_take_the_lease() -> None:
    """A look and a renewal, begun at the last moment."""
    assert lease.RENEW_SECONDS + 2 * lease.CALL_SECONDS < lease.DURATION_SECONDS
