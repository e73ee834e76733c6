"""Between HTTP and the model's thread: who waits while the engine is paused or updated, as in SGLang's front process.

New requests wait here while the engine is paused, so the scheduler does not see them. An update of a paused engine
goes straight to the model's thread; of a running one, it waits until no request is left and keeps new ones out.
"""

import asyncio
import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeVar

from reference.alone import feed
from reference.answers import answer
from reference.behaviour import Behaviour
from reference.bodies import AbortBody, DiskBody, GenerateBody, TensorBody, VersionBody, sampling_of
from reference.generation import Generation, Sampling
from reference.locks import ReadersWriterLock
from reference.model_thread import ModelThread
from reference.weights import WeightUpdater
from weightsync.errors import EngineError, InputError

T = TypeVar("T")
HEALTH_SECONDS = 20.0  # how long /health waits for a token
ABORT_AGAIN = 0.1  # seconds: a request that slipped in after an abort is aborted again


class Leaving(EngineError):
    """No new request is taken: the server was told to end."""

    reason = "EngineLeaving"


class Status(Enum):
    """The server's life."""

    STARTING = "starting"  # no token yet
    UP = "up"
    UNHEALTHY = "unhealthy"  # a health check met no token in time
    LEAVING = "leaving"  # told to end


@dataclass
class Front:
    """Everything on the event loop's side. ``model_path`` follows updates from disk."""

    thread: ModelThread
    updater: WeightUpdater
    behaviour: Behaviour
    engine: str
    model_path: str
    seed_engine: Any = None  # Mooncake's, which must outlive every writer
    seed: list[Any] | None = None  # session and table of the parameters, where they are registered with Mooncake
    status: Status = Status.STARTING
    paused: bool = False
    _pausing: asyncio.Condition = field(default_factory=asyncio.Condition)
    _lock: ReadersWriterLock = field(default_factory=ReadersWriterLock)

    @property
    def version(self) -> str:
        """The weight version now."""
        return self.thread.scheduler.version

    @property
    def in_flight(self) -> int:
        """Requests that were taken and not answered; those that wait for the end of a pause are not among them."""
        return self._lock.readers

    @property
    def update_waits(self) -> bool:
        """Whether an update of the running engine waits for requests to end."""
        return self._lock.writers_waiting > 0

    @property
    def ready(self) -> bool:
        """Whether a new request would be computed."""
        return self.status is Status.UP and not self.paused

    async def generate(self, body: GenerateBody) -> dict[str, Any] | list[dict[str, Any]]:
        """Answer one request or a list. Raises InputError for what is asked wrongly, Leaving after SIGTERM."""
        if self.status is Status.LEAVING:
            raise Leaving("the engine is shutting down: ask another one")
        begun, asked = time.perf_counter(), self._read(body)
        async with self._pausing:
            await self._pausing.wait_for(lambda: not self.paused)
        async with self._lock.reading():
            answers = await self._compute(asked, begun)
        return answers if body.input_ids and isinstance(body.input_ids[0], list) else answers[0]

    def _read(self, body: GenerateBody) -> list["Asked"]:
        if body.stream or body.text is not None:
            raise InputError("the reference engine has no tokenizer and does not stream: send input_ids")
        if not body.input_ids:
            raise InputError("input_ids is empty: send one list of tokens, or a list of lists")
        batch = isinstance(body.input_ids[0], list)
        prompts: list[list[int]] = body.input_ids if batch else [body.input_ids]  # type: ignore[list-item,assignment]
        count = len(prompts)
        params = _per_prompt(body.sampling_params or {}, count, "sampling_params")
        logprobs = _per_prompt(body.return_logprob or False, count, "return_logprob")
        names = _per_prompt(body.rid or "", count, "rid")
        config = self.thread.scheduler.model.config
        asked = []
        for prompt, one, wanted, name in zip(prompts, params, logprobs, names, strict=True):
            if not prompt or not all(0 <= token < config.vocab for token in prompt):
                raise InputError(f"input_ids: a prompt is one or more tokens in [0, {config.vocab})")
            seed = int.from_bytes(os.urandom(7))
            asked.append(Asked(name or uuid.uuid4().hex, prompt, sampling_of(one, prompt, config, seed), wanted))
        return asked

    async def _compute(self, asked: list["Asked"], begun: float) -> list[dict[str, Any]]:
        loop = asyncio.get_running_loop()
        waits: list[asyncio.Future[float]] = [loop.create_future() for _ in asked]

        def told(wait: "asyncio.Future[float]") -> Callable[[Generation], None]:
            def on_done(generation: Generation) -> None:
                del generation
                loop.call_soon_threadsafe(_settle, wait, time.perf_counter())

            return on_done

        generations = [
            Generation(one.name, one.prompt, one.sampling, told(wait)) for one, wait in zip(asked, waits, strict=True)
        ]
        try:
            # One submission for the whole list, so that requests that can be one batch begin together.
            await self.on_model(self.thread.scheduler.add, generations)
            ends = await asyncio.gather(*waits)
        except asyncio.CancelledError:  # the client went away
            for generation in generations:
                self.thread.submit(self.thread.scheduler.abort, generation.name)
            raise
        return [
            answer(
                generation,
                logprobs=one.logprobs,
                version=self.version,
                engine=self.engine,
                behaviour=self.behaviour,
                seconds=end - begun,
            )
            for generation, one, end in zip(generations, asked, ends, strict=True)
        ]

    async def pause(self, mode: Literal["abort", "retract", "in_place"]) -> None:
        """Pause. "abort" ends what is in flight and returns when all of it was answered."""
        async with self._pausing:
            self.paused = True
            if mode != "abort":
                await self.on_model(self.thread.scheduler.pause, mode)
                return
            await self.on_model(self.thread.scheduler.abort)
            while not await self._lock.no_readers(ABORT_AGAIN):
                await self.on_model(self.thread.scheduler.abort)

    async def resume(self) -> None:
        """Go on, and let waiting requests in."""
        async with self._pausing:
            self.paused = False
            await self.on_model(self.thread.scheduler.resume)
            self._pausing.notify_all()

    async def flush(self) -> bool:
        """Forget cached prefixes; False where requests forbid it."""
        return await self.on_model(self.thread.scheduler.flush)

    async def set_version(self, body: VersionBody) -> None:
        """Name the weights, from the next token on."""
        if body.abort_all_requests:
            await self.on_model(self.thread.scheduler.abort)

        def name() -> None:
            self.thread.scheduler.version = body.new_version

        await self.on_model(name)

    async def abort(self, body: AbortBody) -> None:
        """End requests early."""
        if body.abort_all or body.rid:
            await self.on_model(self.thread.scheduler.abort, "" if body.abort_all else body.rid)

    async def begin(self) -> None:
        """Open a session of updates."""
        await self._update(self.updater.begin, abort=False)

    async def end(self) -> None:
        """Close it."""
        await self._update(self.updater.end, abort=False)

    async def from_tensor(self, body: TensorBody) -> None:
        """Run the custom loader."""
        await self._update(
            lambda: self.updater.from_tensor(
                body.serialized_named_tensors, body.load_format, body.flush_cache, body.weight_version
            ),
            abort=body.abort_all_requests,
        )

    async def from_disk(self, body: DiskBody) -> None:
        """Load a checkpoint."""
        await self._update(
            lambda: self.updater.from_disk(body.model_path, body.flush_cache, body.weight_version),
            abort=body.abort_all_requests,
        )
        self.model_path = body.model_path

    async def _update(self, call: Callable[[], None], *, abort: bool) -> None:
        if abort:
            await self.on_model(self.thread.scheduler.abort)
        async with self._pausing:  # held, so that nobody continues the engine meanwhile
            if self.paused:
                await self.on_model(call)
                return
        async with self._lock.writing():
            await self.on_model(call)

    async def generates(self) -> bool:
        """Whether a token comes within the health check's time: not while paused."""
        body = GenerateBody(input_ids=[0], sampling_params={"max_new_tokens": 1, "temperature": 0.0})
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await self.generate(body)
        except TimeoutError:
            if self.status is Status.UP:
                self.status = Status.UNHEALTHY
            return False
        if self.status is Status.UNHEALTHY:
            self.status = Status.UP
        return True

    async def warm_up(self) -> None:
        """Compute one token, past the scheduler: the first pass is slow, and a pause must not hold this one up."""
        model = self.thread.scheduler.model
        await self.on_model(lambda: feed(model, model.new_cache(), [0]))
        if self.status is Status.STARTING:
            self.status = Status.UP

    async def drain(self, seconds: float) -> None:
        """Let requests in flight end; after ``seconds`` they are aborted, with what they have."""
        if not await self._lock.no_readers(seconds):
            await self.on_model(self.thread.scheduler.abort)
            await self._lock.no_readers(1.0)

    async def on_model(self, call: Callable[..., T], *args: Any) -> T:
        """Run ``call`` on the model's thread, between two steps."""
        future: Future[T] = self.thread.submit(call, *args)
        return await asyncio.wrap_future(future)


@dataclass(frozen=True)
class Asked:
    """One prompt, read and checked."""

    name: str
    prompt: list[int]
    sampling: Sampling
    logprobs: bool


def _per_prompt(value: Any, count: int, what: str) -> list[Any]:
    """A list stands for the prompts one by one, anything else for each of them."""
    if not isinstance(value, list):
        numbered = isinstance(value, str) and value and count > 1
        return [f"{value}_{at}" for at in range(count)] if numbered else [value] * count
    if len(value) != count:
        raise InputError(f"{what} has {len(value)} entries for {count} prompts")
    return value


def _settle(wait: "asyncio.Future[float]", now: float) -> None:
    if not wait.done():
        wait.set_result(now)
