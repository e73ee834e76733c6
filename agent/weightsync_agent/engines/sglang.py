"""SGLang: where the engine is paused. Also drives the reference engine of ``examples/``, which speaks the same API.

What holds for every call was seen on a real server (tests/contract): no call to ``/update_weights_from_tensor``
with its own flush or with a loader that the server does not know (both end it), no ``abort`` pause on top of
another one while requests run (it never returns, and nothing resumes the server then), no pause before the
server's own warm-up is over (it ends itself when that takes too long).
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import stamina
from pydantic import ValidationError

from weightsync.errors import EngineError, InputError
from weightsync.records import WireRecord, first_problem
from weightsync_agent.engines.base import (
    Applied,
    ArenaRef,
    Capabilities,
    Description,
    EngineInfo,
    PauseMode,
    Pinned,
    ReadBack,
    Snapshot,
)
from weightsync_agent.engines.errors import engine_error
from weightsync_agent.engines.hook_files import HookFiles, combined
from weightsync_agent.engines.hook_post import HookPost, LocalPost
from weightsync_agent.engines.http import Answer, EngineHttp, refused
from weightsync_agent.engines.keys import Keys
from weightsync_agent.engines.payload import hook_call
from weightsync_agent.engines.seed import SEED_PATH, Seed, parse_seed
from weightsync_agent.engines.server_info import ServerInfo, engine_info, parse_server_info, refusal

MODES = {"InPlace": "in_place", "Retract": "retract", "Abort": "abort"}
PAUSE, CONTINUE, SESSION = "/pause_generation", "/continue_generation", "/begin_weight_update"

R = TypeVar("R", bound=WireRecord)


@dataclass(frozen=True)
class Deadlines:
    """Seconds for one call. drain: for aborted requests to be gone; control covers SGLang's own abort pause."""

    query: float = 5.0
    server_info: float = 30.0  # its scheduler is asked, which may be compiling a kernel
    control: float = 30.0
    drain: float = 1.0
    hook: float = 120.0
    token: float = 300.0  # the first one waits for kernels to be compiled
    health: float = 30.0  # SGLang itself gives up after 20 s


@dataclass
class _Life:
    """What is known of one life of the engine."""

    info: ServerInfo | None = None
    capabilities: Capabilities | None = None
    paused: bool | None = None  # None: not known, as after a restart of the agent
    in_session: bool = False


class SGLangEngine:
    """Implements base.EngineAdapter. ``directory`` is the shared volume as the agent sees it."""

    def __init__(
        self,
        url: str,
        directory: Path,
        keys: Keys | None = None,
        deadlines: Deadlines | None = None,
        post: HookPost | None = None,
    ) -> None:
        self._keys = keys or Keys()
        self._http = EngineHttp(url, self._keys)
        self._post = post or LocalPost(HookFiles(directory))
        self._deadlines = deadlines or Deadlines()
        self._life = _Life()
        self._lock = asyncio.Lock()  # one call of the hook at a time: its request files have fixed names

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop the connection pool."""
        await self._http.close()

    def forget(self) -> None:
        """See EngineAdapter."""
        self._life = _Life()

    # What it says of itself

    async def info(self) -> EngineInfo:
        """See EngineAdapter."""
        model = await self._get("/model_info")
        return engine_info(model.json, await self._server_info(), await self.capabilities())

    async def weight_version(self) -> str:
        """See EngineAdapter."""
        return str((await self._get("/model_info")).json.get("weight_version") or "")

    async def ready(self) -> None:
        """See EngineAdapter."""
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        answer = await self._http.expect("POST", "/generate", body, seconds=self._deadlines.token, control=False)
        if not answer.json.get("output_ids"):
            raise engine_error("EngineRefusedCall", f"{self._http.url}/generate: no token: {answer.words}")
        # A server whose own warm-up waits in a pause for 600 s ends itself: it must have passed that, too.
        health = await self._http.call("GET", "/health", seconds=self._deadlines.health, control=False)
        if health.status != 200:
            raise engine_error("EngineStarting", f"{self._http.url}/health: {health.status}: it is warming up")

    async def capabilities(self) -> Capabilities:
        """See EngineAdapter. GET on an endpoint that is for POST has no effect: 405 where it is, 404 where not."""
        if self._life.capabilities is None:
            info = await self._server_info()
            # A GET that no route takes counts as an ordinary call: it wants the api key, not the admin key.
            answer = await self._http.call("GET", SESSION, seconds=self._deadlines.query, control=False)
            if answer.status not in {404, 405}:
                raise refused(f"{self._http.url}{SESSION}", answer)
            self._life.capabilities = Capabilities(
                begin_end=answer.status == 405,
                flush_with_waiting=info.flush_with_waiting,
                keys=self._keys.kind,
            )
        return self._life.capabilities

    async def seed(self, rank: int) -> Seed | None:
        """See EngineAdapter. The table is keyed by the tensor-parallel rank alone: of two stages one is told."""
        info = await self._server_info()
        if info.pp_size > 1 or info.nodes > 1:  # nor is another pod's memory this agent's to open and to fence
            return None
        path = f"{SEED_PATH}?rank={rank}"
        answer = await self._http.call("GET", path, seconds=self._deadlines.query, control=False)
        if answer.status in {400, 404, 405}:
            return None
        if answer.status != 200:
            raise refused(f"{self._http.url}{path}", answer)
        try:
            return await asyncio.to_thread(parse_seed, answer.json, rank)
        except InputError as error:
            raise engine_error("EngineRefusedCall", f"{self._http.url}{error}", retryable=False) from error

    async def _server_info(self) -> ServerInfo:
        if self._life.info is None:
            answer = await self._get("/server_info", self._deadlines.server_info)
            self._life.info = parse_server_info(answer.json)
        return self._life.info

    async def _get(self, path: str, seconds: float | None = None) -> Answer:
        answer = await self._http.call("GET", path, seconds=seconds or self._deadlines.query, control=False)
        if answer.status != 200 or not answer.json:
            # No words of the body: /server_info carries the keys in clear.
            raise engine_error("EngineRefusedCall", f"{self._http.url}{path}: {answer.status}, no information")
        return answer

    # Pause, version, flush

    async def pause(self, mode: PauseMode) -> None:
        """See EngineAdapter.

        Abort is: retract, then abort what waits, then wait until nothing does. SGLang's own abort pause looks only
        once a second whether requests have ended; and on an engine that is paused already it waits for running
        ones, which a paused scheduler never lets end, and blocks every resume meanwhile.
        """
        serving, self._life.paused = self._life.paused is False, None
        if mode == "Abort":
            await self._control(PAUSE, {"mode": MODES["Retract"]})
            await self._drain(serving)
        else:
            await self._control(PAUSE, {"mode": MODES[mode]})
        self._life.paused = True

    async def _drain(self, serving: bool) -> None:
        """Leave no request and no KV cache in a retracted engine. Raises EngineError where some stay."""
        try:
            await self._flush(self._deadlines.drain, abort=True)
        except EngineError as error:
            if error.reason != "FlushRefused" or not serving:
                raise
            # Some requests end in a running scheduler only (a grammar that is being compiled). The engine served
            # until now, so its memory is whole: it may run until they have ended.
            await self._control(CONTINUE, {"torch_empty_cache": False})
            await self._control(PAUSE, {"mode": MODES["Abort"]})
            await self._flush(self._deadlines.drain, abort=True)

    async def resume(self) -> None:
        """See EngineAdapter."""
        self._life.paused = None
        await self._control(CONTINUE, {"torch_empty_cache": False})
        self._life.paused = False

    @asynccontextmanager
    async def standstill(self) -> AsyncIterator[None]:
        """See EngineAdapter."""
        await self.capabilities()  # asked before the pause, not in it
        await self.pause("InPlace")
        try:
            yield
        finally:
            await self.resume()

    async def set_version(self, name: str) -> None:
        """See EngineAdapter."""
        await self._control("/update_weight_version", {"new_version": name, "abort_all_requests": False})

    async def flush(self, deadline_seconds: float) -> None:
        """See EngineAdapter."""
        await self._flush(deadline_seconds, abort=False)

    async def _flush(self, deadline_seconds: float, *, abort: bool) -> None:
        """abort: before each try, end what waits: a request that was on its way comes after the pause."""
        try:
            async for attempt in stamina.retry_context(
                on=_StillBusy,
                attempts=None,
                timeout=deadline_seconds,
                wait_initial=0.005,
                wait_max=0.25,
                wait_jitter=0.005,
            ):
                with attempt:
                    if abort:
                        await self._control("/abort_request", {"abort_all": True})
                    await self._flush_once()
        except _StillBusy as error:
            raise engine_error(
                "FlushRefused", f"{self._http.url}/flush_cache: refused for {deadline_seconds:g} s: {error}"
            ) from error

    async def _flush_once(self) -> None:
        answer = await self._http.call("POST", "/flush_cache", {}, seconds=self._deadlines.control)
        if answer.status == 400:
            raise _StillBusy(answer.words)
        if answer.status != 200:
            raise refused(f"{self._http.url}/flush_cache", answer)

    async def begin(self) -> None:
        """See EngineAdapter."""
        answer = await self._http.call("POST", SESSION, {"selector": "target"}, seconds=self._deadlines.control)
        if answer.status == 400:  # a session is open: an agent before this one died in it
            await self.end()
            await self._control(SESSION, {"selector": "target"})
        elif answer.status != 200:
            raise refused(f"{self._http.url}{SESSION}", answer)
        self._life.in_session = True

    async def end(self) -> None:
        """See EngineAdapter."""
        await self._control("/end_weight_update", {})
        self._life.in_session = False

    async def _control(self, path: str, body: Mapping[str, Any]) -> None:
        await self._http.expect("POST", path, body, seconds=self._deadlines.control)

    # Inside the engine

    async def describe(self, ranks: Sequence[int]) -> tuple[Description, ...]:
        """See EngineAdapter."""
        found = await self._hook("describe", {rank: {} for rank in ranks}, Description)
        if not (await self.capabilities()).begin_end:
            return found
        return tuple(description.model_copy(update={"repacked": ""}) for description in found)

    async def pin(self, arenas: Sequence[ArenaRef]) -> tuple[Pinned, ...]:
        """See EngineAdapter."""
        return await self._hook("pin", {a.rank: _fields(a) for a in arenas}, Pinned)

    async def snapshot(self, arenas: Sequence[ArenaRef]) -> tuple[Snapshot, ...]:
        """See EngineAdapter."""
        return await self._hook("snapshot", {a.rank: _fields(a) for a in arenas}, Snapshot)

    async def apply(self, arenas: Sequence[ArenaRef]) -> tuple[Applied, ...]:
        """See EngineAdapter."""
        if self._life.paused is False:
            raise engine_error("EngineNotPaused", f"{self._http.url}: it serves: pause it first", retryable=False)
        return await self._hook("apply", {a.rank: _fields(a) for a in arenas}, Applied)

    async def readback(
        self, arenas: Sequence[ArenaRef], *, digests: bool = False, parameters: Sequence[str] = ()
    ) -> tuple[ReadBack, ...]:
        """See EngineAdapter."""
        more = {"digests": digests, "parameters": list(parameters)}
        return await self._hook("readback", {a.rank: {**_fields(a), **more} for a in arenas}, ReadBack)

    async def _hook(self, op: str, requests: Mapping[int, Mapping[str, Any]], kind: type[R]) -> tuple[R, ...]:
        """Run the hook in every rank's process and collect the results of the ranks asked, in their order."""
        async with self._lock:
            info, capabilities = await self._server_info(), await self.capabilities()
            sentence = refusal(info, capabilities)
            if sentence:
                raise engine_error("EngineRefused", f"{self._http.url}: {sentence}", retryable=False)
            # Where there are sessions, no weights call is taken outside of one; a commit opens its own.
            if not capabilities.begin_end or self._life.in_session:
                return await self._ask_hook(op, requests, kind, info.tp_size)
            await self.begin()
            try:
                records = await self._ask_hook(op, requests, kind, info.tp_size)
            except BaseException:
                with suppress(EngineError):  # the first error counts; the next begin closes what stays open
                    await self.end()
                raise
            await self.end()
            return records

    async def _ask_hook(
        self, op: str, requests: Mapping[int, Mapping[str, Any]], kind: type[R], tp_size: int
    ) -> tuple[R, ...]:
        ids = await self._post.ask(op, requests)
        try:
            body = hook_call(tp_size)
            await self._http.expect("POST", "/update_weights_from_tensor", body, seconds=self._deadlines.hook)
        finally:
            await self._post.withdraw(ids)
        found = await self._post.answers(ids)
        if found.failures:
            raise combined(found.failures)
        return tuple(_record(rank, found.records[rank], kind) for rank in ids)


class _StillBusy(EngineError):
    """The flush was refused: requests run, or wait."""


def _record(rank: int, result: Mapping[str, Any], kind: type[R]) -> R:
    try:
        return kind.model_validate(result)
    except ValidationError as error:
        raise engine_error("HookSilent", f"rank {rank}: the hook's result: {first_problem(error)}") from error


def _fields(arena: ArenaRef) -> dict[str, Any]:
    """An arena as the hook's request names it."""
    return arena.model_dump(mode="json", exclude={"rank"})
