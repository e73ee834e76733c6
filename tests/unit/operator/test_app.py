"""The wiring, where a part of it would otherwise surprise."""

import asyncio
import itertools
from typing import Any, cast

import kopf
import pytest
from kubernetes.aio import client

from weightsync_operator import app, handlers
from weightsync_operator.app import App
from weightsync_operator.kube.client import Kube
from weightsync_operator.kube.errors import Forbidden, Unavailable
from weightsync_operator.settings import Settings


class Nobody:
    """Takes events."""

    def pod(self, raw: dict[str, Any], *, deleted: bool) -> None: ...

    def weightsync(self, raw: dict[str, Any], *, deleted: bool) -> None: ...

    def slice_of(self, raw: dict[str, Any], *, deleted: bool) -> None: ...

    def node(self, raw: dict[str, Any], *, deleted: bool) -> None: ...

    def listed(self, kind: str, raw: dict[str, Any]) -> None: ...


def kube() -> Kube:
    configuration = client.Configuration()
    configuration.host = "https://10.0.0.1:443"
    return Kube(configuration)


async def test_kopf_is_told_who_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to itself kopf asks for the user's name, which the image's user, a number, does not have."""
    given: dict[str, Any] = {}

    async def operator(**arguments: Any) -> None:
        given.update(arguments)

    monkeypatch.setattr(kopf, "operator", operator)
    one = App(Settings(identity="operator-1", namespaces=("rl",)), kube())
    stop = asyncio.Event()
    await one._kopf(stop)
    assert given["identity"] == "operator-1"
    assert (given["standalone"], given["clusterwide"], given["namespaces"]) == (True, False, ("rl",))
    assert stop.is_set(), "kopf takes the signals: its end is the operator's"


async def test_kopf_only_watches() -> None:
    """on.event handlers alone: no other kind leaves an object as it was."""
    registry = handlers.register(Nobody(), kube())
    assert registry._watching.get_all_handlers()
    for kind in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert not list(kind.get_all_handlers())


async def test_settings_of_kopf() -> None:
    """A selector of pods goes to the server; nothing is posted, nothing is scanned again."""
    found = handlers.kopf_settings(Settings(pod_selector="weightsync.io/watch=true"))
    assert found.watching.label_selectors["pods"] == "weightsync.io/watch=true"
    assert not found.posting.enabled
    assert found.scanning.disabled


@pytest.mark.parametrize(
    ("key", "scheme", "token"),
    [("bearer abc\n", "Bearer", "abc"), ("Bearer abc", "Bearer", "abc"), (None, None, None)],
    ids=["a pod's", "a kubeconfig's", "a certificate instead"],
)
async def test_kopf_logs_in_with_the_same_credentials(key: str | None, scheme: str | None, token: str | None) -> None:
    """By the server's address and not its name: the operator needs no DNS."""
    ours = kube()
    if key is not None:
        ours.configuration.api_key["BearerToken"] = key
    login = await ours.kopf_login()
    assert (login.server, login.scheme, login.token) == ("https://10.0.0.1:443", scheme, token)


async def test_tries_of_kopf_never_end() -> None:
    """After its own last one kopf ends: a namespace without a role would end the service of all others."""
    delays = handlers.kopf_settings(Settings()).networking.error_backoffs
    assert not isinstance(delays, float | int)
    for _ in range(2):  # each call begins anew
        waits = list(itertools.islice(delays, 1000))
        assert (len(waits), waits[0], waits[-1]) == (1000, 1, 30)


class Served:
    """An API server that serves another kind of our group at each look."""

    def __init__(self, *served: set[str]) -> None:
        self.left = list(served)

    async def get(self, _: str) -> dict[str, Any]:
        return {"resources": [{"name": name} for name in self.left.pop(0)]}


async def test_both_kinds_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf looks once: a kind that is served a moment later would never be watched."""
    monkeypatch.setattr("weightsync_operator.app.START_RETRY_SECONDS", 0)
    server: Any = Served(
        {"weightsyncslices"}, {"weightsyncs", "weightsyncs/status"}, {"weightsyncs", "weightsyncslices"}
    )
    await App(Settings(identity="one"), server)._crds()
    assert server.left == []


async def test_what_ended_the_operator_is_told() -> None:
    """kopf cancels the other parts first: their end is not the reason."""
    others: list[asyncio.Task[Any]] = []

    async def other() -> None:
        others.append(cast(asyncio.Task[Any], asyncio.current_task()))
        await asyncio.Event().wait()

    async def kopfs() -> None:
        await asyncio.sleep(0)
        others[0].cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)
        raise LookupError("why")

    with pytest.raises(LookupError, match="why"):
        await app._first([other(), kopfs()])


async def test_standing_by_for_a_lease_that_may_not_be_used_is_not_ready() -> None:
    """A rolling update would else end the leader for a replica that can never take its place."""
    one = App(Settings(identity="one", leader_election=True, lease_namespace="system"), kube())
    one._stage = app.STANDING_BY
    assert one._ready() == ""
    assert one._lease is not None
    one._lease._lock._told("get", Forbidden("GET leases: 403", 403))
    assert "may not be used: GET leases: 403" in one._ready()
    one._lease._lock._told("get")
    assert one._ready() == ""


async def test_closed_namespaces_are_counted() -> None:
    """Of what the store knows at the scrape: an alert waits for it."""
    one = App(Settings(identity="one"), kube())
    assert b"weightsync_operator_closed_namespaces 0.0" in one._metrics.text()
    one._store.closed = frozenset({"a", "b"})
    assert b"weightsync_operator_closed_namespaces 2.0" in one._metrics.text()


class Busy:
    """An API server that refuses every list but the last."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    async def get(self, path: str, *_: Any) -> dict[str, Any]:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable(f"GET {path}: 429 too many requests", 429)
        return {"metadata": {"resourceVersion": "1"}, "items": []}


async def test_a_busy_server_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of everything are the last that it needs; and /readyz says what is waited for."""
    server: Any = Busy(4)
    one = App(Settings(identity="one"), server)
    waits: list[float] = []
    said: list[str] = []

    async def wait(event: Any, seconds: float) -> None:
        event.close()
        waits.append(seconds)
        said.append(one._ready())
        if len(waits) == 5:
            raise LookupError("enough")
        raise TimeoutError

    monkeypatch.setattr(asyncio, "wait_for", wait)
    with pytest.raises(LookupError):
        await one._resync()
    assert waits == [0.5, 1, 2, 4, 300]
    assert said[0] == "listing: GET /apis/weightsync.io/v1alpha1/weightsyncs: 429 too many requests"
    assert said[-1] == ""
