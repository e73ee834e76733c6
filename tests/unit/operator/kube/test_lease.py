"""The Lease's lock, where the API server is slow."""

import asyncio
from typing import Any

import pytest

from weightsync_operator.kube import lease
from weightsync_operator.kube.errors import Forbidden, NotFound


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


class Refusing:
    """A Lease that exists or not, with a role that lacks some verbs."""

    def __init__(self, *lacks: str, there: bool = True) -> None:
        self.lacks, self.there = set(lacks), there

    def _check(self, verb: str) -> None:
        if verb in self.lacks:
            raise Forbidden(f"{verb} leases: 403 cannot {verb}", 403)

    async def get(self, path: str) -> Any:
        self._check("get")
        if not self.there:
            raise NotFound(path, 404)
        return {"spec": {"holderIdentity": "other"}}

    async def create(self, _: str, body: Any) -> Any:
        self._check("create")
        return body

    async def replace(self, _: str, body: Any) -> Any:
        self._check("update")
        return body


async def tried(lock: lease.Lock) -> None:
    """One try, as the election makes it where the Lease is free."""
    record = lease.record_of({"holderIdentity": "one", "leaseDurationSeconds": 15})
    found, _ = await lock.get("operator", "system")
    await (lock.update if found else lock.create)("operator", "system", record)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        pytest.param(Refusing("get"), "cannot get", id="it may not be read"),
        pytest.param(Refusing("get", "create", "update"), "cannot get", id="nothing may be done"),
        pytest.param(Refusing("create", there=False), "cannot create", id="it may not be made"),
        pytest.param(Refusing("update"), "cannot update", id="it may not be taken"),
        pytest.param(Refusing(), "", id="all may be done"),
        pytest.param(Refusing("create"), "", id="it is there and need not be made"),
    ],
)
async def test_what_the_role_does_not_allow_is_told_until_it_does(server: Any, said: str) -> None:
    """Standing by, while a replica could never take the Lease, is no readiness."""
    lock = lease.Lock(server, "operator", "system", "one")
    assert lock.refused == ""
    for _ in range(2):
        await tried(lock)
        assert said in lock.refused
        assert bool(lock.refused) is bool(said)
    if said:
        assert lock.refused.startswith("Lease system/operator may not be used: ")
    server.lacks.clear()
    await tried(lock)
    assert lock.refused == ""


async def test_a_server_that_is_away_says_nothing_of_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that there are some, nor that there are none."""
    monkeypatch.setattr(lease, "CALL_SECONDS", 0.01)
    server: Any = Refusing("get")
    lock = lease.Lock(server, "operator", "system", "one")
    await tried(lock)
    before = lock.refused
    monkeypatch.setattr(lock, "_kube", Silent())
    await lock.get("operator", "system")
    assert lock.refused == before != ""


def test_the_last_try_ends_before_others_take_the_lease() -> None:
    """A look and a renewal, begun at the last moment."""
    assert lease.RENEW_SECONDS + 2 * lease.CALL_SECONDS < lease.DURATION_SECONDS
