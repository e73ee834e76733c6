"""/healthz, /readyz and /metrics. Answers from memory: nothing here asks the API server."""

from collections.abc import Callable

from aiohttp import web

from weightsync_operator.metrics import Metrics

Sentence = str  # "" where all is well

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def application(healthy: Callable[[], Sentence], ready: Callable[[], Sentence], metrics: Metrics) -> web.Application:
    """healthy, ready: a sentence that says what is wrong, or "" where nothing is."""

    def probe(ask: Callable[[], Sentence]) -> Callable[[web.Request], "web.Response"]:
        def answer(_: web.Request) -> web.Response:
            wrong = ask()
            return web.Response(text=wrong or "ok", status=503 if wrong else 200)

        return answer

    async def healthz(request: web.Request) -> web.Response:
        return probe(healthy)(request)

    async def readyz(request: web.Request) -> web.Response:
        return probe(ready)(request)

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", exposition)
    return app


async def serve(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Listen. Returns the runner, whose cleanup() ends it, and the port. Raises OSError where the port is taken."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host or None, port).start()
    return runner, runner.addresses[0][1]
