"""The raw side: the bytes of one arena written into another by plain Mooncake, submit and sleep-poll."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, Self

from weightsync.arena import PAYLOAD
from weightsync_agent.transfer.settings import TransferSettings, child_environment

ROOT = Path(__file__).resolve().parents[2]


class RawError(Exception):
    """A process of the raw side ended; its own words are on standard error."""


class Raw:
    """Two processes; publish() is one write of the whole payload. The MC_* are those of ``settings``."""

    def __init__(self, settings: TransferSettings, source: asyncio.subprocess.Process) -> None:
        self._settings = settings
        self._source = source
        self._target: asyncio.subprocess.Process | None = None
        self._region: list[Any] = []

    @classmethod
    async def start(cls, settings: TransferSettings, source: Path, target: Path, nbytes: int) -> Self:
        """Both ends, registered."""
        made = cls(settings, await cls._spawn(settings, "source", source, nbytes))
        await made._line(made._source)
        made._target = await cls._spawn(settings, "target", target, nbytes)
        made._region = await made._line(made._target)
        return made

    @staticmethod
    async def _spawn(settings: TransferSettings, role: str, path: Path, nbytes: int) -> asyncio.subprocess.Process:
        environment = {
            **child_environment(settings, "127.0.0.1", os.environ),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tools.bench.raw_peer", role, str(path), str(PAYLOAD), str(nbytes),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment, cwd=ROOT,
        )  # fmt: skip

    @staticmethod
    async def _line(process: asyncio.subprocess.Process) -> Any:
        if process.stdout is None:
            raise RawError("a raw peer was started without a pipe")
        line = await process.stdout.readline()
        if not line:
            raise RawError(f"a raw peer ended with status {await process.wait()}")
        return json.loads(line)

    async def publish(self) -> float:
        """Seconds of one write, by the source's own clock."""
        if self._source.stdin is None:
            raise RawError("the raw source was started without a pipe")
        order = [*self._region, self._settings.piece_bytes, self._settings.poll_seconds]
        self._source.stdin.write(json.dumps(order).encode() + b"\n")
        return float(await self._line(self._source))

    async def close(self) -> None:
        """End both processes."""
        for process in (self._source, self._target):
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()
