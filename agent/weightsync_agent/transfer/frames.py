"""The pipe between supervisor and worker: JSON objects behind a length of four bytes. EOF is the other's end."""

import asyncio
import json
import socket
import struct
from typing import Any

Message = dict[str, Any]

_LENGTH = struct.Struct("<I")


def pack(message: Message) -> bytes:
    """One frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


def receive(pipe: socket.socket) -> Message | None:
    """Block for the next message (worker's side). None: the supervisor is gone."""
    head = _exactly(pipe, _LENGTH.size)
    body = _exactly(pipe, _LENGTH.unpack(head)[0]) if head is not None else None
    return json.loads(body) if body is not None else None


def _exactly(pipe: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = pipe.recv(count - len(parts))
        except ConnectionError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


async def read(reader: asyncio.StreamReader) -> Message | None:
    """The next message (supervisor's side). None: the worker is gone."""
    try:
        head = await reader.readexactly(_LENGTH.size)
        body = await reader.readexactly(_LENGTH.unpack(head)[0])
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    message: Message = json.loads(body)
    return message
