"""One request, one answer, against a server that speaks HTTP and is nothing else."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from weightsync import names
from weightsync_operator.kube.client import Kube
from weightsync_operator.kube.errors import Unavailable


async def ask(answer: web.Response) -> tuple[dict[str, str], object]:
    """What the server was sent, and the answer."""
    sent: dict[str, str] = {}

    async def handle(request: web.Request) -> web.Response:
        sent.update(request.headers)
        return answer

    app = web.Application()
    app.router.add_get("/api", handle)
    async with TestServer(app) as server:
        configuration = client.Configuration()
        configuration.host = f"http://{server.host}:{server.port}"
        kube = Kube(configuration)
        try:
            return sent, await kube.get("/api")
        finally:
            await kube.close()


async def test_it_says_who_it_is() -> None:
    """For audit logs, and for flow schemas."""
    sent, said = await ask(web.json_response({"kind": "APIVersions"}))
    assert sent["User-Agent"] == f"weightsync-operator/{names.VERSION}"
    assert said == {"kind": "APIVersions"}


async def test_what_is_no_json_is_no_answer() -> None:
    """A proxy's page with status 200 is a failed try, and not the end of the operator."""
    with pytest.raises(Unavailable, match="GET /api: 200 and no JSON: b'<html>"):
        await ask(web.Response(text="<html>please log in"))
