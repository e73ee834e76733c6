"""The adapter's calls against a scripted server: what is sent, in which order, and what becomes of every answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from weightsync.errors import EngineError
from weightsync_agent.engines.base import ArenaRef, EngineAdapter, PauseMode
from weightsync_agent.engines.keys import Keys
from weightsync_agent.engines.sglang import Deadlines, SGLangEngine

Handler = Callable[[dict[str, Any]], tuple[int, Any]]


class Script:
    """A server that notes every call and answers from a table; the weights call runs ``hook`` for both ranks."""

    def __init__(self, directory: Path) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.keys: list[str] = []
        self.directory = directory
        self.sessions = False
        self.open = False
        self.info: dict[str, Any] = {
            "version": "0.5.17", "tp_size": 2, "custom_weight_loader": ["weightsync_hook.load"], "api_key": "sesame",
        }  # fmt: skip
        self.answers: dict[str, Handler] = {
            "/model_info": lambda body: (200, {"weight_version": "default", "model_path": "/m"}),
            "/server_info": lambda body: (200, self.info),
            "/generate": lambda body: (200, {"output_ids": [7]}),
            "/flush_cache": lambda body: (200, "Cache flushed.\n"),
            "/update_weights_from_tensor": self.weights,
            "/begin_weight_update": lambda body: self._session(True),
            "/end_weight_update": lambda body: self._session(False),
        }
        self.results: dict[int, dict[str, Any]] = {0: {"ok": True}, 1: {"ok": True}}
        self.asked: list[dict[str, Any]] = []

    def _session(self, wanted: bool) -> tuple[int, Any]:
        if self.open == wanted:
            return 400, {"success": False, "message": "a weight-update session is already open" if wanted else "none"}
        self.open = wanted
        return 200, {"success": True, "message": "Success"}

    def weights(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.sessions and not self.open:
            return 400, {"success": False, "message": "must run between begin and end"}
        for rank in range(2):
            path = self.directory / "hook" / f"request-{rank}.json"
            if path.exists():
                request = json.loads(path.read_text())
                self.asked.append({"rank": rank, **request})
                result = {"id": request["id"], "op": request["op"], "rank": rank, **self.results[rank]}
                (self.directory / "hook" / f"result-{rank}.json").write_text(json.dumps(result))
        return 200, {"success": True, "message": "Success"}

    async def handle(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization", ""))
        if request.method == "GET" and request.path == "/begin_weight_update":
            return web.Response(status=405 if self.sessions else 404)
        body = await request.json() if request.can_read_body else {}
        self.calls.append((request.path, body))
        answer = self.answers.get(request.path)
        status, content = answer(body) if answer else (200, {"status": "ok"})
        if isinstance(content, str):
            return web.Response(status=status, text=content)
        return web.json_response(content, status=status)

    @property
    def paths(self) -> list[str]:
        """Everything but information."""
        return [path for path, _ in self.calls if path not in {"/model_info", "/server_info"}]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """The server's table."""
    (tmp_path / "hook").mkdir()
    return Script(tmp_path)


@pytest.fixture
async def url(script: Script) -> AsyncIterator[str]:
    """The running server."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", script.handle)
    async with TestServer(application) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.fixture
async def engine(url: str, tmp_path: Path) -> AsyncIterator[SGLangEngine]:
    """The adapter, with an admin and an api key."""
    async with SGLangEngine(url, tmp_path, Keys("admin", "api")) as adapter:
        yield adapter


ARENAS = [
    ArenaRef(rank=r, arena=Path(f"/a/{r}"), program=Path("/p"), layout="0a" * 16, grant="0b" * 16, root="0c" * 32)
    for r in (0, 1)
]


async def test_it_is_an_engine_adapter(engine: SGLangEngine) -> None:
    """The types say so."""
    adapter: EngineAdapter = engine
    assert adapter is engine


async def test_info_keeps_what_is_needed(engine: SGLangEngine, script: Script) -> None:
    """Both answers, the refusal with them; the key in /server_info is nowhere."""
    info = await engine.info()
    assert (info.weight_version, info.ranks, info.refusal) == ("default", (0, 1), "")
    assert "sesame" not in repr(vars(engine._life))
    assert await engine.weight_version() == "default"


async def test_control_takes_the_admin_key_and_the_rest_the_api_key(engine: SGLangEngine, script: Script) -> None:
    """As SGLang wants it."""
    await engine.ready()
    await engine.resume()
    assert script.keys == ["Bearer api", "Bearer api", "Bearer admin"]


DRAIN = [
    ("/pause_generation", {"mode": "retract"}),
    ("/abort_request", {"abort_all": True}),
    ("/flush_cache", {}),
]


@pytest.mark.parametrize(
    ("before", "mode", "sent"),
    [
        pytest.param("resume", "Retract", [("/pause_generation", {"mode": "retract"})], id="retract"),
        pytest.param("resume", "InPlace", [("/pause_generation", {"mode": "in_place"})], id="in place"),
        pytest.param("resume", "Abort", DRAIN, id="abort on a serving engine"),
        pytest.param("pause", "Abort", DRAIN, id="abort on a paused engine never waits for running requests"),
        pytest.param("", "Abort", DRAIN, id="abort on an engine of which nothing is known"),
    ],
)
async def test_pauses(
    engine: SGLangEngine, script: Script, before: str, mode: PauseMode, sent: list[tuple[str, Any]]
) -> None:
    """Abort is a retraction, an abort of what waits, and a flush that shows that nothing does."""
    if before == "resume":
        await engine.resume()
    if before == "pause":
        await engine.pause("InPlace")
    script.calls.clear()
    await engine.pause(mode)
    assert script.calls == sent


@pytest.mark.parametrize("serving", [True, False])
async def test_requests_that_only_a_running_scheduler_ends(
    url: str, script: Script, tmp_path: Path, serving: bool
) -> None:
    """An engine that served is whole: it runs until they have ended. One that may be torn never does.

    A pause that did not empty the engine has failed: nothing flushes after it.
    """
    script.answers["/flush_cache"] = lambda body: (400, "Flush cache failed.\n")
    async with SGLangEngine(url, tmp_path, deadlines=Deadlines(drain=0.02)) as engine:
        if serving:
            await engine.resume()
        script.calls.clear()
        with pytest.raises(EngineError, match="flush_cache: refused for") as caught:
            await engine.pause("Abort")
    assert caught.value.reason == "FlushRefused"
    sent = [call for call in script.calls if call not in DRAIN[1:] and not call[0].endswith("_info")]
    again = [("/continue_generation", {"torch_empty_cache": False}), ("/pause_generation", {"mode": "abort"})]
    assert sent == DRAIN[:1] + (again if serving else [])


async def test_requests_that_come_while_it_is_drained_are_ended_too(engine: SGLangEngine, script: Script) -> None:
    """Before each try to flush: a busy engine gets new ones all the time."""
    answers = [(400, "Flush cache failed.\n"), (200, "Cache flushed.\n")]
    script.answers["/flush_cache"] = lambda body: answers.pop(0)
    await engine.resume()
    script.calls.clear()
    await engine.pause("Abort")
    assert script.calls == [*DRAIN, *DRAIN[1:]]


async def test_versions_are_set_without_aborting(engine: SGLangEngine, script: Script) -> None:
    """SGLang's default would abort every request."""
    await engine.set_version("torn:a.1")
    assert script.calls == [("/update_weight_version", {"new_version": "torn:a.1", "abort_all_requests": False})]


async def test_a_refused_flush_is_retried(engine: SGLangEngine, script: Script) -> None:
    """400 means that requests run or wait: again, until it succeeds."""
    script.answers["/flush_cache"] = lambda body: (400 if len(script.calls) < 4 else 200, "Flush cache failed.\n")
    await engine.flush(30)
    assert script.paths == ["/flush_cache"] * 4


async def test_a_flush_that_is_refused_too_long_fails_with_the_engines_words(
    engine: SGLangEngine, script: Script
) -> None:
    """And another status at once."""
    script.answers["/flush_cache"] = lambda body: (400, "Flush cache failed.\n")
    with pytest.raises(EngineError, match=r"refused for 0\.05 s: Flush cache failed\.") as caught:
        await engine.flush(0.05)
    assert (caught.value.reason, caught.value.retryable) == ("FlushRefused", True)
    script.calls.clear()
    script.answers["/flush_cache"] = lambda body: (500, "broken")
    with pytest.raises(EngineError, match="500: broken"):
        await engine.flush(30)
    assert len(script.calls) == 1


async def test_the_hook_is_asked_for_every_rank_at_one_call(engine: SGLangEngine, script: Script) -> None:
    """Requests before the call, results after it, and no request is left."""
    script.results = {r: {"ok": True, "nbytes": 8 + r, "seconds": 0.5, "pinned": True} for r in (0, 1)}
    applied = await engine.apply(ARENAS)
    assert [(a.rank, a.nbytes, a.pinned) for a in applied] == [(0, 8, True), (1, 9, True)]
    assert script.paths == ["/update_weights_from_tensor"]
    assert [(a["rank"], a["op"], a["arena"], a["grant"]) for a in script.asked] == [
        (0, "apply", "/a/0", "0b" * 16),
        (1, "apply", "/a/1", "0b" * 16),
    ]
    assert not list((script.directory / "hook").glob("request-*"))


async def test_one_ranks_failure_is_the_engines(engine: SGLangEngine, script: Script) -> None:
    """Although the engine answered with success."""
    script.results = {
        0: {"ok": True, "nbytes": 1, "seconds": 0.1},
        1: {"ok": False, "reason": "NotSealed", "error": "no"},
    }
    with pytest.raises(EngineError, match="no") as caught:
        await engine.apply(ARENAS)
    assert caught.value.reason == "NotSealed"


async def test_a_hook_that_wrote_nothing_is_an_error(engine: SGLangEngine, script: Script) -> None:
    """The engine's success proves nothing."""
    script.answers["/update_weights_from_tensor"] = lambda body: (200, {"success": True, "message": "Success"})
    with pytest.raises(EngineError, match=r"rank 0 wrote no result-0\.json") as caught:
        await engine.pin(ARENAS)
    assert caught.value.reason == "HookSilent"


async def test_a_result_of_another_shape_is_an_error(engine: SGLangEngine, script: Script) -> None:
    """The hook in the engine may be another release's."""
    with pytest.raises(EngineError, match="nbytes"):
        await engine.apply(ARENAS)


async def test_an_engine_without_the_hook_is_never_called(engine: SGLangEngine, script: Script) -> None:
    """A loader that the server does not know would end it."""
    script.info["custom_weight_loader"] = []
    with pytest.raises(EngineError, match="--custom-weight-loader") as caught:
        await engine.describe([0])
    assert (caught.value.reason, caught.value.retryable) == ("EngineRefused", False)
    assert script.paths == []
    script.info["custom_weight_loader"] = ["weightsync_hook.load"]
    engine.forget()
    script.results[0] = {"ok": True, "incarnation": "1-2", "parameters": []}
    assert (await engine.describe([0]))[0].incarnation == "1-2"


@pytest.mark.parametrize("sessions", [True, False], ids=["with sessions", "without sessions"])
async def test_repacked_parameters_need_sessions(engine: SGLangEngine, script: Script, sessions: bool) -> None:
    """Sessions undo and redo what a quantised layer does after loading; without them a rank says which it is."""
    script.sessions = sessions
    script.results[0] = {"ok": True, "incarnation": "1-2", "parameters": [], "repacked": "mlp (Fp8) is repacked"}
    (described,) = await engine.describe([0])
    assert described.repacked == ("" if sessions else "mlp (Fp8) is repacked")


async def test_an_engine_that_serves_is_not_written_to(engine: SGLangEngine, script: Script) -> None:
    """Torn first: apply on an engine that this agent resumed is refused before the call."""
    await engine.resume()
    script.calls.clear()
    with pytest.raises(EngineError, match="pause it first"):
        await engine.apply(ARENAS)
    assert script.paths == []


async def test_standstill_resumes_also_after_a_failure(engine: SGLangEngine, script: Script) -> None:
    """The engine served before and serves after."""
    script.results[0] = {"ok": False, "error": "no"}
    with pytest.raises(EngineError):
        async with engine.standstill():
            await engine.describe([0])
    assert script.paths == ["/pause_generation", "/update_weights_from_tensor", "/continue_generation"]
    assert script.calls[0][0] == "/server_info"  # not within the pause


async def test_sessions_are_opened_where_there_are_any(engine: SGLangEngine, script: Script) -> None:
    """Around each question to the hook; a commit's own session is used by its apply."""
    script.sessions = True
    script.results = {r: {"ok": True, "nbytes": 1, "seconds": 0.1, "pinned": True} for r in (0, 1)}
    await engine.pin(ARENAS)
    assert script.paths == ["/begin_weight_update", "/update_weights_from_tensor", "/end_weight_update"]
    script.calls.clear()
    await engine.begin()
    await engine.apply(ARENAS)
    await engine.end()
    assert script.paths == ["/begin_weight_update", "/update_weights_from_tensor", "/end_weight_update"]
    assert (await engine.capabilities()).begin_end


async def test_a_session_that_a_dead_agent_left_open_is_closed_first(engine: SGLangEngine, script: Script) -> None:
    """begin, refused; end; begin."""
    script.sessions, script.open = True, True
    await engine.begin()
    assert script.paths == ["/begin_weight_update", "/end_weight_update", "/begin_weight_update"]


async def test_a_failed_question_closes_its_session(engine: SGLangEngine, script: Script) -> None:
    """And its own error is what is raised, also where the closing fails."""
    script.sessions = True
    script.results[0] = {"ok": False, "error": "mine", "reason": "HookFailed"}
    script.answers["/end_weight_update"] = lambda body: (400, {"message": "other"})
    with pytest.raises(EngineError, match="mine"):
        await engine.describe([0])
    assert script.paths[-1] == "/end_weight_update"


@pytest.mark.parametrize(
    ("status", "body", "reason", "words"),
    [
        pytest.param(400, {"success": False, "message": "busy"}, "EngineRefusedCall", "400: busy", id="its message"),
        pytest.param(400, {"error": {"message": "bad body"}}, "EngineRefusedCall", "bad body", id="a nested error"),
        pytest.param(200, {"success": False, "message": "no"}, "EngineRefusedCall", "200: no", id="success false"),
        pytest.param(500, "Internal Server Error", "EngineRefusedCall", "500: Internal", id="a text"),
        pytest.param(401, {"error": "Unauthorized"}, "EngineUnauthorized", "admin key", id="a wrong key"),
    ],
)
async def test_answers_that_are_errors(
    engine: SGLangEngine, script: Script, *, status: int, body: Any, reason: str, words: str
) -> None:
    """The engine's own words, the reason, and no key."""
    script.answers["/continue_generation"] = lambda _: (status, body)
    with pytest.raises(EngineError, match=words) as caught:
        await engine.resume()
    assert caught.value.reason == reason
    assert "Bearer" not in str(caught.value)


async def test_a_broken_server_info_is_not_quoted(engine: SGLangEngine, script: Script) -> None:
    """Its words may hold the keys."""
    script.answers["/server_info"] = lambda body: (500, {"message": "sesame"})
    with pytest.raises(EngineError) as caught:
        await engine.info()
    assert "sesame" not in str(caught.value)


async def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    """Named by its address, and worth trying again."""
    async with SGLangEngine(f"http://127.0.0.1:{unused_port()}", tmp_path) as engine:
        with pytest.raises(EngineError, match=r"127\.0\.0\.1") as caught:
            await engine.info()
    assert (caught.value.reason, caught.value.retryable) == ("EngineUnreachable", True)


async def test_an_engine_that_hangs(url: str, script: Script, tmp_path: Path) -> None:
    """The deadline ends the call, and the request of the hook is withdrawn: a late run finds nothing to do."""
    hang = asyncio.Event()
    real = script.handle

    async def handle(request: web.Request) -> web.Response:
        if request.path == "/update_weights_from_tensor":
            await hang.wait()
        return await real(request)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    async with (
        TestServer(application) as server,
        SGLangEngine(str(server.make_url("")), tmp_path, deadlines=Deadlines(hook=0.05)) as engine,
    ):
        with pytest.raises(EngineError, match=r"no answer in 0\.05 s") as caught:
            await engine.describe([0])
        hang.set()
    assert caught.value.reason == "EngineTimeout"
    assert not list((tmp_path / "hook").glob("request-*"))


async def test_ready_means_a_token_and_a_finished_warm_up(engine: SGLangEngine, script: Script) -> None:
    """An answer without one is an error, and so is a server that still warms up: it must not be paused."""
    await engine.ready()
    script.answers["/health"] = lambda body: (503, "")
    with pytest.raises(EngineError, match="warming up") as caught:
        await engine.ready()
    assert (caught.value.reason, caught.value.retryable) == ("EngineStarting", True)
    script.answers["/generate"] = lambda body: (200, {"output_ids": []})
    with pytest.raises(EngineError, match="no token"):
        await engine.ready()
