"""The first contact with a peer, on a socket of our own and with a deadline of our own.

Mooncake's own first contact holds a lock that all its submits need, for a minute where the peer is stopped. So the
peer's handshake port is asked for its descriptor first: the answer proves that the process runs, that it is the
one we were told of, that its protocol acknowledges landed bytes, and that it has registered the region.
"""

import asyncio
import json
import struct
from typing import Any, NamedTuple

from weightsync.errors import TransferError
from weightsync.wire.v1 import Transport

_HEAD = struct.Struct("<QB")  # bytes that follow the length, kind
_METADATA = 1
_MAX_ANSWER = 1 << 20  # Mooncake's own bound
AGAIN = 0.1  # seconds
ACKNOWLEDGED = 2  # from this TCP protocol version on, done means landed


class Peer(NamedTuple):
    """What a worker's handshake port says of it. regions: (address, bytes); data_port: where bytes come in."""

    session: str
    tcp_protocol: int
    regions: tuple[tuple[int, int], ...]
    transport: Transport = "tcp"
    data_port: int = 0

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether these bytes lie within one registered region."""
        return any(start <= address and address + nbytes <= start + length for start, length in self.regions)


def split(session: str) -> tuple[str, int]:
    """Host and port of a session ``host:port`` or ``[v6]:port``. Raises TransferError."""
    host, _, port = session.rpartition(":")
    if not host or not port.isdigit():
        raise TransferError(f"session {session!r} is not host:port", reason="BadSession", quiet=True)
    return host.removeprefix("[").removesuffix("]"), int(port)


async def probe(session: str, deadline_seconds: float) -> Peer:
    """Ask a session for its descriptor. Raises TransferError (nothing was written: quiet) with what is wrong.

    Mooncake serves one handshake at a time and drops a caller that waited, so one that was cut off asks again.
    """
    host, port = split(session)
    cut_off = ""
    try:
        async with asyncio.timeout(deadline_seconds):
            while True:
                try:
                    answer = await _ask(host, port)
                    break
                except (ConnectionResetError, asyncio.IncompleteReadError) as error:
                    cut_off = f"; before that it was cut off: {error}"
                    await asyncio.sleep(AGAIN)
    except TimeoutError as error:
        raise _unreachable(
            session, f"no answer within {deadline_seconds:g} s: stopped, or cut off{cut_off}"
        ) from error
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        raise _unreachable(session, str(error) or type(error).__name__) from error
    peer = read(answer, session)
    if peer.session != session:
        raise _unreachable(session, f"worker {peer.session} answers there")
    # On RDMA a write is done when the peer's device has acknowledged it: there is no version to ask for.
    if peer.transport == "tcp" and peer.tcp_protocol < ACKNOWLEDGED:
        raise TransferError(
            f"worker {session} speaks version {peer.tcp_protocol} of Mooncake's TCP protocol, which reports writes "
            f"done before their bytes have landed; version {ACKNOWLEDGED} is needed: upgrade Mooncake there",
            reason="ProtocolTooOld",
            quiet=True,
        )
    return peer


async def _ask(host: str, port: int) -> Any:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        # Mooncake aborts on a malformed handshake; an empty object is a whole one.
        body = b"{}"
        writer.write(_HEAD.pack(len(body) + 1, _METADATA) + body)
        await writer.drain()
        length, kind = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        if kind != _METADATA or not 1 <= length <= _MAX_ANSWER:
            raise ValueError(f"its answer is no descriptor (kind {kind}, {length} bytes)")
        return json.loads(await reader.readexactly(length - 1))
    finally:
        writer.close()


def read(answer: Any, session: str) -> Peer:
    """The fields of a descriptor that are used here. Raises TransferError where one is missing."""
    if not isinstance(answer, dict):
        raise _unreachable(session, f"its answer is no descriptor but {answer!r:.80}")
    try:
        regions = tuple((int(buffer["addr"]), int(buffer["length"])) for buffer in answer.get("buffers") or ())
        version = int(answer.get("tcp_proto_version", 1))
        transport: Transport = (
            "tcp" if answer.get("protocol", "tcp") == "tcp" else "rdma"
        )  # EFA has a name of its own
        return Peer(str(answer["name"]), version, regions, transport, int(answer.get("tcp_data_port") or 0))
    except (KeyError, TypeError, ValueError) as error:
        raise _unreachable(session, f"its descriptor has no usable {error}") from error


async def gone(session: str, deadline_seconds: float) -> bool:
    """Whether the process behind a session has certainly ended: its port refuses, so no byte can land any more.

    False where that cannot be known. A process that is just dying may still let us connect, then resets: ask again.
    """
    host, port = split(session)
    deadline = asyncio.get_running_loop().time() + deadline_seconds
    while (left := deadline - asyncio.get_running_loop().time()) > 0:
        try:
            async with asyncio.timeout(left):
                await _ask(host, port)
        except ConnectionRefusedError:
            return True
        except TimeoutError:
            return False
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(min(left, 0.02))
        except ValueError:
            return False
        else:
            return False
    return False


def _unreachable(session: str, why: str) -> TransferError:
    return TransferError(f"worker {session} cannot be reached: {why}", reason="Unreachable", quiet=True)
