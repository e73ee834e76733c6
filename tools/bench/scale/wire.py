"""What lies between an operator and the API server: connections that can be cut, fall silent, or not come about."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from tools.cluster import kubeconfig
from tools.cluster.light import LightCluster

HOST = "127.0.0.1"
CHUNK = 1 << 16


@dataclass(eq=False)
class _Line:
    """One connection: its two ends, and what carries bytes each way."""

    ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    carriers: list[asyncio.Task[None]] = field(default_factory=list)

    def still(self) -> None:
        for task in self.carriers:
            task.cancel()

    def abort(self) -> None:
        self.still()
        for end in self.ends:
            end.transport.abort()


class Wire:
    """A port of this machine behind which the API server is. Use as a context manager, in the loop that carries."""

    def __init__(self, cluster: LightCluster) -> None:
        self._cluster = cluster
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self._silent: set[_Line] = set()
        self._parted = False

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for line in self._silent:
            line.abort()

    def kubeconfig(self, path: Path) -> Path:
        """Write the administrator's kubeconfig for this way to the API server. Returns ``path``."""
        if self._server is None:
            raise RuntimeError("the wire is not laid: enter it first")
        port = self._server.sockets[0].getsockname()[1]
        return kubeconfig.write(path, f"https://{HOST}:{port}", self._cluster.authority, self._cluster.admin)

    def cut(self) -> None:
        """Every connection ends at once; others can be made."""
        for line in list(self._lines):
            line.abort()
        self._lines.clear()

    def part(self) -> None:
        """Every connection ends, and none comes about until `mend`."""
        self._parted = True
        self.cut()

    def mend(self) -> None:
        """Connections can be made again."""
        self._parted = False

    def hush(self) -> int:
        """Nothing comes over the connections of now any more, and neither end is told. Returns how many they are."""
        for line in self._lines:
            line.still()
        self._silent |= self._lines
        count = len(self._lines)
        self._lines.clear()
        return count

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._parted:
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection(HOST, int(self._cluster.url.rpartition(":")[2]))
        except OSError:  # the API server is away: so is this
            writer.transport.abort()
            return
        line = _Line((writer, there[1]))
        self._lines.add(line)
        line.carriers = [
            asyncio.create_task(self._carry(line, reader, there[1])),
            asyncio.create_task(self._carry(line, there[0], writer)),
        ]

    async def _carry(self, line: _Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # an end that was reset ends the other
            while data := await reader.read(CHUNK):
                writer.write(data)
                await writer.drain()
        line.abort()
        self._lines.discard(line)
