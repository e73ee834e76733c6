"""HTTP: paths, status codes and bodies of SGLang's API, one handler an endpoint. What is done stands in front.py."""

import json
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from reference.auth import allowed
from reference.bodies import (
    AbortBody,
    BeginBody,
    CheckerBody,
    ContinueBody,
    DiskBody,
    EndBody,
    GenerateBody,
    PauseBody,
    TensorBody,
    VersionBody,
)
from reference.front import Front, Leaving, Status
from reference.settings import Settings
from reference.weights import Refused
from weightsync.errors import InputError

B = TypeVar("B", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
BODY_LIMIT = 64 << 20


class WrongBody(Exception):
    """The body is no JSON, or not what the endpoint takes."""


class Routes:
    """say: prints one event as a line of JSON."""

    def __init__(self, front: Front, settings: Settings, info: dict[str, Any], say: Callable[..., None]) -> None:
        self._front, self._settings, self._info, self._say = front, settings, info, say
        self._answered = False

    def application(self) -> web.Application:
        """All endpoints of the release that is acted."""
        app = web.Application(middlewares=[self._guard], client_max_size=BODY_LIMIT)
        get, post = app.router.add_get, app.router.add_post
        post("/generate", self.generate)
        app.router.add_put("/generate", self.generate)
        post("/pause_generation", self.pause)
        post("/continue_generation", self.resume)
        for path, handler in (("/flush_cache", self.flush), ("/weights_checker", self.checker)):
            get(path, handler)
            post(path, handler)
        post("/update_weight_version", self.version)
        post("/update_weights_from_tensor", self.from_tensor)
        post("/update_weights_from_disk", self.from_disk)
        post("/abort_request", self.abort)
        if self._front.behaviour.sessions:
            post("/begin_weight_update", self.begin)
            post("/end_weight_update", self.end)
        if self._front.behaviour.ready:
            get("/ready", self.ready)
        for path in ("/health", "/health_generate"):
            get(path, self.health)
        for path in ("/model_info", "/get_model_info"):
            get(path, self.model_info)
        for path in ("/server_info", "/get_server_info"):
            get(path, self.server_info)
        get("/remote_instance_transfer_engine_info", self.seed)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        keys = self._settings.api_key, self._settings.admin_api_key
        routed = request.match_info.http_exception is None
        if not allowed(request.path, request.headers.get("Authorization"), *keys, routed=routed):
            return web.json_response({"error": "Unauthorized"}, status=HTTPStatus.UNAUTHORIZED)
        try:
            return await handler(request)
        except WrongBody as error:
            body = {"object": "error", "message": str(error), "type": "Bad Request", "param": None, "code": 400}
            return web.json_response(body, status=HTTPStatus.BAD_REQUEST)
        except web.HTTPException as error:
            return web.json_response({"detail": error.reason}, status=error.status)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /generate. The first answer that carries a token is told on the output."""
        body = await _read(request, GenerateBody)
        try:
            answers = await self._front.generate(body)
        except (InputError, ValidationError) as error:
            return web.json_response({"error": {"message": str(error)}}, status=HTTPStatus.BAD_REQUEST)
        except Leaving as error:
            return web.json_response({"error": {"message": str(error)}}, status=HTTPStatus.SERVICE_UNAVAILABLE)
        response = web.json_response(answers)
        some = answers if isinstance(answers, list) else [answers]
        if not self._answered and any(one["output_ids"] for one in some):
            self._answered = True
            await response.prepare(request)
            await response.write_eof()
            self._say("first_answer", engine=self._front.engine, version=self._front.version)
        return response

    async def pause(self, request: web.Request) -> web.StreamResponse:
        """POST /pause_generation."""
        body = await _read(request, PauseBody)
        await self._front.pause(body.mode)
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, request: web.Request) -> web.StreamResponse:
        """POST /continue_generation."""
        await _read(request, ContinueBody)
        await self._front.resume()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def flush(self, request: web.Request) -> web.StreamResponse:
        """GET or POST /flush_cache; the body is not looked at."""
        if await self._front.flush():
            return web.Response(text="Cache flushed.\n")
        return web.Response(text="Flush cache failed.\n", status=HTTPStatus.BAD_REQUEST)

    async def version(self, request: web.Request) -> web.StreamResponse:
        """POST /update_weight_version."""
        body = await _read(request, VersionBody)
        await self._front.set_version(body)
        message = f"Weight version updated to {body.new_version}"
        return web.json_response({"success": True, "message": message, "new_version": body.new_version})

    async def begin(self, request: web.Request) -> web.StreamResponse:
        """POST /begin_weight_update."""
        await _read(request, BeginBody)
        return await _outcome(self._front.begin(), "Success")

    async def end(self, request: web.Request) -> web.StreamResponse:
        """POST /end_weight_update."""
        await _read(request, EndBody)
        return await _outcome(self._front.end(), "Success")

    async def from_tensor(self, request: web.Request) -> web.StreamResponse:
        """POST /update_weights_from_tensor."""
        body = await _read(request, TensorBody)
        return await _outcome(self._front.from_tensor(body), "Success" + _renamed(body.weight_version))

    async def from_disk(self, request: web.Request) -> web.StreamResponse:
        """POST /update_weights_from_disk."""
        body = await _read(request, DiskBody)
        message = "Succeeded to update model weights." + _renamed(body.weight_version)
        return await _outcome(self._front.from_disk(body), message, num_paused_requests=0)

    async def checker(self, request: web.Request) -> web.StreamResponse:
        """GET or POST /weights_checker; without a body, checksums."""
        body = await _read(request, CheckerBody) if request.can_read_body else CheckerBody()
        try:
            rank = await self._front.on_model(self._front.updater.checker, body.action)
        except Refused as error:
            return web.json_response({"success": False, "message": str(error)}, status=HTTPStatus.BAD_REQUEST)
        answer: dict[str, Any] = {"success": True, "message": "Success."}
        if rank is not None:
            answer |= {"ranks": [rank], "per_engine_checksum": rank["per_gpu_checksum"]}
        return web.json_response(answer)

    async def abort(self, request: web.Request) -> web.StreamResponse:
        """POST /abort_request."""
        await self._front.abort(await _read(request, AbortBody))
        return web.Response()

    async def ready(self, request: web.Request) -> web.StreamResponse:
        """GET /ready."""
        return web.Response(status=HTTPStatus.OK if self._front.ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def health(self, request: web.Request) -> web.StreamResponse:
        """GET /health, /health_generate: a token is computed, except for /health where it is made shallow."""
        well = self._front.status not in (Status.STARTING, Status.LEAVING)
        if well and not (self._settings.shallow_health and request.path == "/health"):
            well = await self._front.generates()
        return web.Response(status=HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE)

    async def model_info(self, request: web.Request) -> web.StreamResponse:
        """GET /model_info."""
        document = {
            "model_path": self._front.model_path,
            "served_model_name": self._info["model_path"],
            "tokenizer_path": self._front.model_path,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": self._front.version,
            "load_format": "auto",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
        }
        return web.json_response(document)

    async def seed(self, request: web.Request) -> web.StreamResponse:
        """GET /remote_instance_transfer_engine_info?rank=N: where that rank's parameters may be written to."""
        rank = request.query.get("rank", "")
        if self._front.seed is None or rank != "0":
            return web.Response(text=f"no transfer engine info of rank {rank}", status=HTTPStatus.BAD_REQUEST)
        return web.json_response({"rank": 0, "remote_instance_transfer_engine_info": self._front.seed})

    async def server_info(self, request: web.Request) -> web.StreamResponse:
        """GET /server_info: the start-up configuration, keys in clear, as SGLang answers it."""
        state = await self._front.on_model(self._front.thread.scheduler.state)
        return web.json_response(self._info | {"internal_states": [state]})


async def _read(request: web.Request, kind: type[B]) -> B:
    """The body as ``kind``. Raises WrongBody; a body that is not declared as JSON is wrong, as in FastAPI."""
    if request.content_type != "application/json":
        raise WrongBody(f"{request.path} takes a body of content type application/json, not {request.content_type}")
    try:
        return kind.model_validate(json.loads(await request.read()))
    except (ValueError, ValidationError) as error:
        raise WrongBody(f"{request.path}: {error}") from error


async def _outcome(doing: Awaitable[None], message: str, **more: Any) -> web.Response:
    """SGLang's answer to an update: success and message, 400 where it was refused."""
    try:
        await doing
    except InputError as error:
        return web.json_response({"success": False, "message": str(error), **more}, status=HTTPStatus.BAD_REQUEST)
    return web.json_response({"success": True, "message": message, **more})


def _renamed(version: str | None) -> str:
    return "" if version is None else f" Weight version updated to {version}."


def say(event: str, **fields: Any) -> None:
    """One event as a line of JSON on the output; unix_ms: milliseconds since 1970."""
    print(json.dumps({"event": event, "unix_ms": time.time_ns() // 1_000_000, **fields}), flush=True)
