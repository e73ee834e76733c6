"""A whole agent, wired as in a cluster, between a real API server and callers with real tokens."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fuzz.test_http import ENGINE_BODIES
from tests.integration.agent_periphery.test_from_slices import ROLLOUT, Operator, crds
from tools.world.ports import Ports
from weightsync import names
from weightsync_agent import app
from weightsync_agent.settings import Settings

__all__ = ["crds"]
pytestmark = pytest.mark.apiserver


async def test_an_engines_agent_obeys_whom_the_head_names_and_whose_token_proves_it(
    space: Any, crds: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The coordinator gets as far as the engine, which is not there; everybody else is refused before that."""
    pod, trainer, stranger = space.pod("rollout-0", ROLLOUT), space.pod("trainer-0"), space.pod("trainer-9")
    Operator(space).head(term=1, coordinator=trainer.uid)
    (tmp_path / "token").write_text(space.token(pod, names.AUDIENCE))
    monkeypatch.setenv("KUBECONFIG", str(space.kubeconfig(pod)))
    ports = Ports()
    request.addfinalizer(ports.close)
    port = ports.take()
    settings = Settings.from_environment(
        role="engine", pod_name=pod.name, pod_namespace=pod.namespace, pod_uid=pod.uid, pod_ip="127.0.0.1",
        directory=tmp_path / "volume", token_file=tmp_path / "token", port=port, bind="127.0.0.1",
        engine_url="http://127.0.0.1:1", memory_limit=2**30,
    )  # fmt: skip
    stop = asyncio.Event()
    agent = asyncio.create_task(app.run(settings, stop))
    session = aiohttp.ClientSession(f"http://127.0.0.1:{port}")

    async def asked(token: str, **changes: Any) -> tuple[int, str]:
        body = ENGINE_BODIES["/v1/grants"] | changes
        async with session.post("/v1/grants", json=body, headers={"Authorization": f"Bearer {token}"}) as answer:
            return answer.status, (await answer.json())["reason"]

    async def listens() -> bool:
        try:
            async with session.get("/healthz") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            return False

    try:
        async with asyncio.timeout(60):
            while not await listens():
                assert not agent.done(), agent.exception()
                await asyncio.sleep(0.05)
        own, theirs = space.token(trainer, names.AUDIENCE), space.token(stranger, names.AUDIENCE)
        assert await asked(own, coordinator=trainer.uid) == (503, "EngineSilent")
        assert await asked(own, coordinator=trainer.uid, term=2) == (403, "NotCoordinator")
        assert await asked(theirs, coordinator=stranger.uid, term=2) == (403, "NotCoordinator")
        assert await asked(theirs, coordinator=trainer.uid) == (403, "NotYou")
        assert await asked(space.token(trainer), coordinator=trainer.uid) == (401, "TokenRefused")
        assert await asked("x.y.z", coordinator=trainer.uid) == (401, "TokenRefused")
        # The pod is replaced: the same name, another uid, and the old token is still within its time.
        space.call("DELETE", f"{space.core}/pods/{trainer.name}?gracePeriodSeconds=0")
        successor = space.pod("trainer-0")
        assert await asked(own, coordinator=successor.uid) == (403, "NotYou")
    finally:
        stop.set()
        await asyncio.wait({agent}, timeout=30)
        await session.close()
    assert agent.exception() is None
