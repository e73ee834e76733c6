"""What a case of the suite works with: one engine, its volume, two checkpoints, and requests in flight."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.contract.api import Api, Json, Seen
from tests.contract.replica import Replica, layout_of
from weightsync_agent.engines.base import ArenaRef, Description
from weightsync_agent.engines.sglang import SGLangEngine

PROMPTS = ([5, 17, 99, 3, 25, 7], [11, 12, 13], [90, 4, 4, 4, 4, 4, 81, 6, 2], [3])


class Spoilt(Exception):
    """The engine was too fast or too slow for the case to say anything: choose other numbers."""


@dataclass
class Flights:
    """Long requests that run while something else happens."""

    tasks: list[asyncio.Task[Seen]]
    tokens: int

    @property
    def landed(self) -> int:
        """How many were answered."""
        return sum(task.done() for task in self.tasks)

    async def outcomes(self, seconds: float = 120.0) -> list[Json]:
        """How they ended, each kind once: status, finish reason, and whether all, some or no tokens came."""
        async with asyncio.timeout(seconds):
            seen = await asyncio.gather(*self.tasks)
        notes = [
            {
                "status": s.status,
                "finish": s.at("meta_info.finish_reason.type"),
                "tokens": _amount(s.at("output_ids"), self.tokens),
            }
            for s in seen
        ]
        return [note for at, note in enumerate(notes) if note not in notes[:at]]


def _amount(tokens: Any, wanted: int) -> str:
    count = len(tokens) if isinstance(tokens, list) else 0
    return "all" if count == wanted else "some" if count else "none"


@dataclass
class World:
    """long_tokens: so many that requests still run after ``settle`` seconds.

    counts: the engine tells how many requests it runs, so that nobody needs to guess when they do.
    """

    api: Api
    engine: SGLangEngine
    volume: Path
    before: Path
    after: Path
    admin: str = ""
    key: str = ""
    long_tokens: int = 400
    settle: float = 0.5
    counts: bool = False
    description: Description | None = None
    replica: Replica | None = None
    notes: Json = field(default_factory=dict)

    async def generate(self, prompt: list[int], tokens: int = 16) -> Seen:
        """Greedy tokens after a prompt."""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        return await self.api.post("/generate", {"input_ids": prompt, "sampling_params": sampling})

    async def tokens(self) -> list[list[int]]:
        """Greedy tokens of all prompts, one request at a time."""
        return [(await self.generate(prompt)).body["output_ids"] for prompt in PROMPTS]

    async def version(self) -> str:
        """What the engine calls its weights."""
        return str((await self.api.get("/model_info")).body["weight_version"])

    async def checksums(self) -> dict[str, str]:
        """The engine's own digest of each of its tensors."""
        seen = await self.api.post("/weights_checker", {"action": "checksum"})
        return dict(seen.body["ranks"][0]["checksums"])

    async def from_disk(self, directory: Path) -> Seen:
        """Load a checkpoint the slow way: the oracle."""
        return await self.api.post("/update_weights_from_disk", {"model_path": str(directory)})

    @asynccontextmanager
    async def flying(self, count: int = 4) -> AsyncIterator[Flights]:
        """``count`` long requests, all running. Raises Spoilt where they are over before the case began."""
        tasks = [asyncio.create_task(self.generate([7 + n, 8, 9], self.long_tokens)) for n in range(count)]
        flights = Flights(tasks, self.long_tokens)
        await asyncio.sleep(self.settle)
        if self.counts:
            await self._run(count)
        if flights.landed:
            raise Spoilt(f"{flights.landed} of {count} requests of {self.long_tokens} tokens ended too early")
        try:
            yield flights
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, count: int) -> None:
        """Wait until so many run and each has a token: the engine takes turns, and a later request was answered."""
        async with asyncio.timeout(60):
            while (await self.api.get("/server_info")).body["internal_states"][0]["running_requests"] < count:
                pass  # each turn is a request, and the engine steps in between
            await self.generate([1, 2], 2)

    async def idle(self) -> None:
        """Resumed and without requests: flushing succeeds."""
        await self.engine.resume()
        await self.engine.flush(60)

    async def described(self) -> Description:
        """Rank 0, described once."""
        if self.description is None:
            async with self.engine.standstill():
                (self.description,) = await self.engine.describe([0])
        return self.description

    async def filled(self, directory: Path) -> ArenaRef:
        """Rank 0's arena, sealed with the checkpoint in ``directory``."""
        description = await self.described()
        if self.replica is None:
            self.replica = Replica(self.volume, layout_of(description))
        await asyncio.to_thread(self.replica.fill, directory)
        return self.ref()

    def ref(self) -> ArenaRef:
        """The arena as it was last sealed."""
        if self.replica is None or self.description is None:
            raise Spoilt("no arena yet")
        return ArenaRef(
            rank=0, arena=self.replica.path, program=self.replica.program, layout=self.replica.layout.digest,
            grant=self.replica.grant, root=self.replica.version.root, incarnation=self.description.incarnation,
        )  # fmt: skip
