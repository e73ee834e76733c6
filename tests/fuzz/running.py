"""Agents to send bad input to: real ones, with everything but Mooncake's processes and the engine, in a thread."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from tests.unit.agent.drivers.test_engine_driver import Engine, program
from tools.world.ports import Ports
from weightsync.announcement import SourceRank, TargetRank
from weightsync.digests import BucketDigest
from weightsync.plan import Engine as PlannedEngine
from weightsync.plan import Plan, Route, Source, Strategy, Target
from weightsync.wire.v1 import Problem, Region
from weightsync_agent.base import Common
from weightsync_agent.drivers.crew import CrewCalls
from weightsync_agent.engine_agent import EngineAgent
from weightsync_agent.journal.file import DecisionFile, JournalFile
from weightsync_agent.member_agent import MemberAgent
from weightsync_agent.own_pod.no_pod import NoPod
from weightsync_agent.peers import auth
from weightsync_agent.peers.heads import Head
from weightsync_agent.peers.server import HttpServer
from weightsync_agent.protocol.engine_leader import LeaderState
from weightsync_agent.settings import Settings
from weightsync_agent.trainer_agent import TrainerAgent

T = TypeVar("T")
SECRET = "a secret that only the tests know"  # noqa: S105
PROOF = {"Authorization": f"Bearer {SECRET}"}
NONCE = "1" * 16
PROGRAM = program(0)
HANG = 10.0  # seconds: nothing that is refused takes so long


class Worker:
    """A transfer worker without a process: registers nothing, and reads every digest as the same."""

    def __init__(self, capabilities: Any) -> None:
        self.capabilities = capabilities
        self.session = "127.0.0.1:15000"
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def attach(self, path: Path) -> Region:
        return Region(session=self.session, address=4096, nbytes=16)

    async def digest(self, path: Path, buckets: Any) -> list[BucketDigest]:
        return [BucketDigest(offset=b.offset, nbytes=b.nbytes, digest="0" * 32) for b in buckets]

    def kill(self) -> None:
        if not self.dead.done():
            self.dead.set_result("killed")

    async def close(self) -> None:
        self.kill()


class Feed:
    """One plan, and never another."""

    def __init__(self, plan: Plan) -> None:
        self._plans = [plan]

    async def next(self) -> Plan:
        if not self._plans:
            await asyncio.Event().wait()
        return self._plans.pop()


@dataclass
class Answer:
    """What was answered."""

    status: int
    body: bytes

    @property
    def refused(self) -> bool:
        """With an error."""
        return self.status >= 400

    def check(self, request: object) -> None:
        """Accepted, or refused with a Problem that says why; never an error that nobody foresaw."""
        assert self.status != 500, f"{request!r:.300}: {self.body!r:.300}"
        if self.refused:
            problem = Problem.model_validate_json(self.body)
            assert problem.reason
            assert 0 < len(problem.message) < 5000


class Running:
    """An agent's servers in a thread with a loop of its own. bugs: what its log calls an error.

    verifier: who calls, instead of any holder of SECRET; head: whom the cluster made coordinator.
    """

    def __init__(
        self,
        folder: Path,
        role: str,
        verifier: auth.Verifier | None = None,
        head: Callable[[], Awaitable[Head]] | None = None,
    ) -> None:
        self.folder = folder
        self._verifier = verifier
        self._head = head
        self.bugs: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self.bugs.append(context))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        structlog.configure(processors=[self._note], wrapper_class=structlog.BoundLogger)
        self._ports = Ports()
        self.port = self._ports.take()
        secret = folder / "secret"
        secret.touch(mode=0o600)
        secret.write_text(SECRET)
        led = {"leader": "127.0.0.1:1", "node_rank": 1} if role == "member" else {}
        self.settings = Settings.from_environment(
            **led, role="trainer" if role == "trainer" else "engine", plan="file:/none", own_uid="t0",
            directory=folder / "volume", secret_file=secret, port=self.port, bind="127.0.0.1", advertise="127.0.0.1",
            stall_seconds=0.05, memory_limit=2**30,
        )  # fmt: skip
        self.kept: http.client.HTTPConnection | None = None
        self.agent: Any = None
        self.run(self._start(role))

    def _note(self, logger: Any, name: str, entry: Any) -> Any:
        if name in ("error", "exception", "critical"):
            self.bugs.append(entry)
        raise structlog.DropEvent

    def run(self, work: Coroutine[Any, Any, T], seconds: float = HANG) -> T:
        """In the agent's loop, from outside."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    async def _start(self, role: str) -> None:
        assert self.settings.secret_file is not None
        proof = auth.by_secret(self.settings.secret_file)
        common = self.common = Common(self.settings, NoPod(), proof.credentials, self._verifier or proof.verifier)

        async def start_worker(name: str, rank: int, ranks: Collection[int], carrier: object = None) -> Any:
            return Worker(common.capabilities)

        common.start_worker = start_worker  # type: ignore[method-assign]
        common.volume.prepare()
        await common.client.start()
        if role == "member":
            self.agent = MemberAgent(common, self._head)
        else:
            self.agent = await (self._engine(common) if role == "engine" else self._trainer(common))
        self.server = HttpServer([*common.routes(), *self.agent.routes()])
        await self.server.listen("127.0.0.1", self.port)
        self._task: asyncio.Task[None] | None = None
        if role == "trainer":
            self._task = asyncio.create_task(self.agent.run())
            async with asyncio.timeout(HANG):
                while self.agent.plan() is None:  # noqa: ASYNC110 - the agent tells nobody
                    await asyncio.sleep(0.01)

    async def _engine(self, common: Common) -> EngineAgent:
        common.volume.rank_program(0).write_text(PROGRAM.model_dump_json())
        adapter: Any = Engine(1)
        crew = CrewCalls(self.settings.uid, common.client, self.settings.stall_seconds)
        agent = EngineAgent(common, adapter, JournalFile.within(self.settings.directory), None, self._head, crew=crew)
        await agent.driver._look_once()
        async with asyncio.timeout(HANG):
            while agent.driver.machine.state is not LeaderState.FRESH:  # noqa: ASYNC110 - the driver tells nobody
                await asyncio.sleep(0.01)
        return agent

    async def _trainer(self, common: Common) -> TrainerAgent:
        (common.volume.layouts / f"{PROGRAM.digest}.json").write_text(PROGRAM.model_dump_json())
        feed: Any = Feed(self.plan())
        return TrainerAgent(common, feed, DecisionFile.within(self.settings.directory), None)

    def plan(self) -> Plan:
        """This agent feeds one engine, which nobody reaches; a sync of it ends soon."""
        rank = TargetRank(rank=0, layout=PROGRAM.layout.digest, program=PROGRAM.digest)
        routes = (Route(stage=0, source="t0", rank=0),)
        target = Target(uid="e0", pod="e0", address="127.0.0.1:1", rank=rank, routes=routes)
        engine = PlannedEngine(name="e0", leader="e0", address="127.0.0.1:1", incarnation="l", targets=(target,))
        ranks = (SourceRank(rank=0, world_size=1, nonce=NONCE),)
        source = Source(uid="t0", pod="t0", address=f"127.0.0.1:{self.port}", ranks=ranks)
        # Shorter than a plan may say: what is waited for by deadlines is waited for at each example.
        strategy = Strategy().model_copy(update={"deadline_seconds": 0.05})
        return Plan(
            name="p", term=1, generation=1, coordinator="t0", strategy=strategy, sources=(source,), engines=(engine,)
        )

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        """Over TCP, by one kept connection."""
        self.kept = self.kept or http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)
        return self._exchange(self.kept, method, path, body, PROOF if headers is None else headers)

    def ask_socket(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """Over the trainer's Unix socket."""
        connection = http.client.HTTPConnection("localhost", timeout=HANG)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(HANG)
        connection.sock.connect(str(self.common.volume.socket))
        try:
            return self._exchange(connection, method, path, body, {})
        finally:
            connection.close()

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
    ) -> Answer:
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return Answer(answer.status, answer.read())

    def raw(self, data: bytes, seconds: float = HANG) -> bytes:
        """Bytes as they are; all that comes back until the agent closes, or answers once."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(data)
            return connection.recv(65536)

    def alive(self) -> None:
        """The agent answers, and its log holds no bug."""
        assert self.ask("GET", "/healthz").status == 200
        found, self.bugs = self.bugs, []
        assert not found, f"{found[0]!r:.2000}"

    def close(self) -> None:
        """End it."""
        if self.kept is not None:
            self.kept.close()
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG)
        self._loop.close()
        self._ports.close()
        structlog.reset_defaults()

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.agent.close()
        await self.server.close()
        await self.common.client.close()

    def unchanged(self, before: dict[str, Any]) -> str:
        """What differs from ``before``; "" where nothing does."""
        now = self.seen()
        return "; ".join(
            f"{key}: {before.get(key)!r:.900} -> {now.get(key)!r:.900}"
            for key in sorted({*before, *now})
            if before.get(key) != now.get(key)
        )

    def _fences(self) -> bool:
        """A worker is being replaced in the background, for a request that was answered before."""
        targets = self.agent.driver.targets.values() if isinstance(self.agent, EngineAgent) else ()
        return any(each.machine.state.name == "FENCING" for target in targets for each in target.arenas)

    def seen(self) -> dict[str, Any]:
        """What a refused input must leave as it was, the highest term that was let in aside."""
        deadline = time.monotonic() + HANG
        while self._fences() and time.monotonic() < deadline:
            time.sleep(0.002)
        files = [*self.common.volume.arenas.iterdir(), self.settings.directory / "journal"]
        files.append(self.settings.directory / "decision")
        found: dict[str, Any] = {str(path): path.read_bytes()[:4096] for path in files if path.is_file()}
        for path in ("/v1/announcement", "/v1/status"):
            answer = self.ask("GET", path)
            if answer.status == 200:
                found[path] = {key: value for key, value in json.loads(answer.body).items() if key != "term"}
        return found
