"""The wiring, where a part of it would otherwise surprise."""

import asyncio
from typing import Any

import kopf
import pytest
from kubernetes.aio import client

from weightsync_operator import handlers
from weightsync_operator.app import App
from weightsync_operator.kube.client import Kube
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
    app = App(Settings(identity="operator-1", namespaces=("rl",)), kube())
    stop = asyncio.Event()
    await app._kopf(stop)
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
