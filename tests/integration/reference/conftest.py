"""The reference engine for tests: in this process with a gate before each step, or as a process of its own."""

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from reference.behaviour import BEHAVIOURS
from reference.checkpoint import make_checkpoint, read_checkpoint
from reference.config import ModelConfig
from reference.engine_model import build_engine_model
from reference.front import Front
from reference.model_thread import ModelThread
from reference.routes import Routes
from reference.scheduler import Scheduler
from reference.server import server_info
from reference.settings import parse
from reference.shards import Shards
from reference.weights import WeightUpdater

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 90.0  # seconds, for what takes far less: machines in CI are slow and shared
Reply = tuple[int, Any]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def config() -> ModelConfig:
    """Two layers; query heads share KV heads."""
    return ModelConfig(
        vocab=48, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate=64, max_positions=16384
    )


@pytest.fixture(scope="session")
def checkpoints(config: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two versions of the weights on disk."""
    folders = [tmp_path_factory.mktemp("checkpoint") for _ in range(2)]
    for seed, folder in enumerate(folders):
        make_checkpoint(folder, config, seed)
    return folders


class GatedScheduler(Scheduler):
    """Steps only as often as a test allows; None: always. So nothing depends on how fast the machine is."""

    steps_left: int | None = None

    @property
    def has_work(self) -> bool:
        """As ever, if a step is allowed."""
        return super().has_work and self.steps_left != 0

    def step(self) -> None:
        """One of the allowed ones."""
        super().step()
        if self.steps_left is not None:
            self.steps_left -= 1


@dataclass
class Engine:
    """The engine's API, in this process. loads: what the tiny loader of the test was called with."""

    client: "TestClient[Any, Any]"
    front: Front
    scheduler: GatedScheduler
    said: list[dict[str, Any]]
    accidents: list[BaseException]

    async def post(self, path: str, body: Any = None, **more: Any) -> Reply:
        """Status and body of a POST; JSON where it is JSON."""
        async with self.client.post(path, json=body, **more) as response:
            return response.status, _decoded(await response.text())

    async def get(self, path: str, **more: Any) -> Reply:
        """Status and body of a GET."""
        async with self.client.get(path, **more) as response:
            return response.status, _decoded(await response.text())

    def generate(self, prompt: Any, tokens: int = 8, **params: Any) -> "asyncio.Task[Reply]":
        """A request in flight."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, **params}
        return asyncio.create_task(self.post("/generate", {"input_ids": prompt, "sampling_params": sampling}))

    async def allow(self, steps: int | None) -> None:
        """Let the model make so many steps, and wait until they are made; None: no more gate."""

        def let() -> None:
            self.scheduler.steps_left = steps

        await self.front.on_model(let)
        if steps is not None:
            await self.until(lambda: self.scheduler.steps_left == 0)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that is true between two steps of the model."""
        async with asyncio.timeout(DEADLINE):
            while not await self.front.on_model(holds):
                pass  # each turn goes through the model's thread, which steps in between

    async def in_flight(self, count: int) -> None:
        """Wait until the scheduler holds so many requests."""
        await self.until(lambda: len(self.scheduler.waiting) + self.scheduler.running_requests == count)


class Start(Protocol):
    """Makes an Engine."""

    def __call__(self, *flags: str, gated: bool = False) -> Awaitable[Engine]: ...


@pytest.fixture
async def start(checkpoints: list[Path]) -> AsyncIterator[Start]:
    """Engines of this process, of the first checkpoint, stopped after the test."""
    engines: list[Engine] = []

    async def make(*flags: str, gated: bool = False) -> Engine:
        settings = parse(["--model-path", str(checkpoints[0]), "--engine-name", "e0", *flags])
        config, state = read_checkpoint(checkpoints[0])
        behaviour = BEHAVIOURS[settings.act_as]
        scheduler = GatedScheduler(
            build_engine_model(config, state),
            settings.weight_version,
            flush_ignores_waiting=behaviour.flush_ignores_waiting,
        )
        accidents: list[BaseException] = []
        thread = ModelThread(scheduler, accidents.append)
        updater = WeightUpdater(scheduler, behaviour, settings.loaders, Shards(scheduler.model))
        front = Front(thread, updater, behaviour, settings.engine_name, str(settings.model_path))
        said: list[dict[str, Any]] = []

        def say(event: str, **fields: Any) -> None:
            said.append({"event": event, **fields})

        routes = Routes(front, settings, server_info(settings, config), say)
        thread.start()
        client = TestClient(TestServer(routes.application()))
        await client.start_server()
        await front.warm_up()
        if gated:
            scheduler.steps_left = 0
        engines.append(Engine(client, front, scheduler, said, accidents))
        return engines[-1]

    yield make
    for engine in engines:
        if not engine.accidents:
            await engine.front.drain(0)
        await engine.client.close()
        await asyncio.to_thread(engine.front.thread.stop)


class Process:
    """The engine as a process; its lines of JSON are read by a thread."""

    def __init__(self, flags: list[str], environment: dict[str, str]) -> None:
        self.spawned = time.time()
        command = [sys.executable, "-m", "reference.server", "--port", "0", *flags]
        paths = [str(ROOT / "examples"), str(ROOT / "sdk"), environment.pop("PYTHONPATH", "")]
        environment = os.environ | environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.events: list[dict[str, Any]] = []
        self.errors = ""
        self._readers = [threading.Thread(target=self._read_lines), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def event(self, name: str) -> dict[str, Any]:
        """The next line of that event; fails after the deadline."""
        while True:
            for event in self.events:
                if event["event"] == name:
                    return event
            self.events.append(json.loads(self._lines.get(timeout=DEADLINE)))

    async def until_running(self) -> None:
        """Wait until a request is being computed."""
        async with ClientSession() as session, asyncio.timeout(DEADLINE):
            running = 0
            while not running:
                async with session.get(self.url + "/server_info") as response:
                    running = (await response.json())["internal_states"][0]["running_requests"]

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.event('listening')['port']}"

    async def post(self, path: str, body: Any) -> Reply:
        """Status and body of a POST."""
        async with ClientSession() as session, session.post(self.url + path, json=body) as response:
            return response.status, _decoded(await response.text())

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit status."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Wait for the end; the exit status."""
        status = self.process.wait(DEADLINE)
        for reader in self._readers:
            reader.join(DEADLINE)
        return status

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def spawn(checkpoints: list[Path], tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Engines as processes, of the first checkpoint, with a volume of their own in tmp_path/volume."""
    processes: list[Process] = []

    def make(*flags: str, **environment: str) -> Process:
        environment = {"WEIGHTSYNC_DIR": str(tmp_path / "volume")} | environment
        processes.append(Process(["--model-path", str(checkpoints[0]), *flags], environment))
        return processes[-1]

    yield make
    for process in processes:
        process.close()


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
