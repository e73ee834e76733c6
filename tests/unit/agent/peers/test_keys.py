"""The cache of keys: fetched when needed, rarely, and kept through outages."""

import asyncio
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from weightsync.errors import PeerError, Refused
from weightsync_agent.peers.keys import OLD_SECONDS, PAUSE_SECONDS, KeyCache, KeyDocument

PRIVATE = ec.generate_private_key(ec.SECP256R1())


class Server:
    """What the API server publishes, how often it was asked, and a clock."""

    def __init__(self, *kids: str) -> None:
        self.kids, self.asked, self.now, self.down = list(kids), 0, 0.0, False

    async def fetch(self) -> KeyDocument:
        self.asked += 1
        await asyncio.sleep(0)
        if self.down:
            raise PeerError("the API server cannot be reached")
        key: dict[str, Any] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(PRIVATE.public_key()))
        return KeyDocument("https://issuer", {"keys": [key | {"kid": kid, "alg": "ES256"} for kid in self.kids]})

    def cache(self) -> KeyCache:
        return KeyCache(self.fetch, lambda: self.now)


async def test_keys_are_fetched_once_for_many_callers() -> None:
    """A hundred calls at once are one request, and later calls none."""
    server = Server("k1")
    cache = server.cache()
    found = await asyncio.gather(*(cache.find("k1") for _ in range(100)))
    assert {key.issuer for key in found} == {"https://issuer"}
    server.now = OLD_SECONDS - 1
    await cache.find("k1")
    assert server.asked == 1


async def test_a_new_key_is_found_and_a_made_up_one_costs_little() -> None:
    """A rotated key is fetched on first sight; unknown ids ask the API server at most once per pause."""
    server = Server("k1")
    cache = server.cache()
    await cache.find("k1")
    server.kids, server.now = ["k1", "k2"], PAUSE_SECONDS
    assert (await cache.find("k2")).jwk.key_id == "k2"
    for number in range(50):
        with pytest.raises(Refused, match="does not have") as caught:
            await cache.find(f"made-up-{number}")
        assert caught.value.status == 401
    assert server.asked == 2
    server.now += PAUSE_SECONDS
    with pytest.raises(Refused):
        await cache.find("made-up")
    assert server.asked == 3


async def test_an_outage_stops_nothing() -> None:
    """Keys that are known stay good, even when they would be fetched anew; a withdrawn one goes afterwards."""
    server = Server("k1")
    cache = server.cache()
    await cache.find("k1")
    server.down, server.now = True, OLD_SECONDS
    assert (await cache.find("k1")).issuer == "https://issuer"
    server.down, server.now, server.kids = False, 2 * OLD_SECONDS, ["k2"]
    with pytest.raises(Refused):
        await cache.find("k1")


async def test_without_any_keys_the_agent_says_that_it_is_not_the_callers_fault() -> None:
    """503 with the API server's words; as soon as it answers, callers are let in."""
    server = Server("k1")
    server.down = True
    cache = server.cache()
    with pytest.raises(Refused, match=r"could not fetch the cluster's keys yet: the API server cannot") as caught:
        await cache.find("k1")
    assert caught.value.status == 503
    server.down, server.now = False, PAUSE_SECONDS
    assert (await cache.find("k1")).jwk.key_id == "k1"


async def test_a_hanging_api_server_holds_nobody_whose_key_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old keys are used as soon as a call's patience ends, and while the fetch hangs at once; one fetch for all."""
    monkeypatch.setattr("weightsync_agent.peers.keys.PATIENCE_SECONDS", 0.01)
    server = Server("k1")
    cache = server.cache()
    await cache.find("k1")
    answered = asyncio.Event()
    real = cache._fetch

    async def hanging() -> KeyDocument:
        await answered.wait()
        return await real()

    cache._fetch = hanging
    server.now = OLD_SECONDS
    async with asyncio.timeout(10):
        found = await asyncio.gather(*(cache.find("k1") for _ in range(100)))
    assert {key.issuer for key in found} == {"https://issuer"}
    assert server.asked == 1
    server.kids = ["k2"]
    answered.set()
    assert (await cache.find("k2")).jwk.key_id == "k2"
    assert server.asked == 2
    with pytest.raises(Refused):
        await cache.find("k1")


async def test_the_pause_between_fetches_counts_from_the_end_of_the_last() -> None:
    """A fetch that hung for as long as the pause is not followed by another at once."""
    server = Server("k1")
    cache = server.cache()
    real = cache._fetch

    async def slow() -> KeyDocument:
        server.now += 2 * PAUSE_SECONDS
        return await real()

    cache._fetch = slow
    for _ in range(3):
        with pytest.raises(Refused):
            await cache.find("k2")
    assert server.asked == 1
