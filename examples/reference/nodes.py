"""An engine whose ranks live in several processes, one a pod: what the leader's process and the others say.

As in SGLang the server of node 0 alone is spoken to, and a call that changes weights runs in every rank's process.
The processes meet at --dist-init-addr before the server answers. None outlives another: whoever loses a peer ends.
Generation is the whole model's, in node 0, so every load ends with the ranks' parameters on their way there.
"""

import importlib
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from reference.payload import decode_named_tensors
from weightsync.errors import InputError

MEET_SECONDS = 600.0  # until every node's process is there
LENGTH = struct.Struct(">I")
MOST = 1 << 20  # bytes of a message's head: names and sizes


def share(ranks: int, nodes: int, node: int) -> range:
    """The ranks of one node: the next of equal shares, as in SGLang."""
    each = ranks // nodes
    return range(node * each, (node + 1) * each)


def loader_of(name: str) -> Any:
    """The function that ``module.function`` names."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function)


class Line:
    """One connection: heads in JSON, each with bytes of tensors behind it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, head: Mapping[str, Any], tensors: Sequence[Tensor] = ()) -> None:
        """Raises OSError where the peer is gone."""
        text = json.dumps(head).encode()
        self._connection.sendall(LENGTH.pack(len(text)) + text)
        for tensor in tensors:
            self._connection.sendall(_bytes(tensor))

    def head(self) -> dict[str, Any]:
        """The next one. Raises ConnectionError where the peer is gone."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        if length > MOST:
            raise ConnectionError(f"a head of {length} bytes is no peer's of ours")
        found: dict[str, Any] = json.loads(self._exactly(length))
        return found

    def into(self, tensors: Sequence[Tensor]) -> None:
        """Fill these with what follows a head."""
        for tensor in tensors:
            view, at = _bytes(tensor), 0
            while at < len(view):
                count = self._connection.recv_into(view[at:])
                if not count:
                    raise ConnectionError("the peer left in the middle of a tensor")
                at += count

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            part = self._connection.recv(count - len(found))
            if not part:
                raise ConnectionError("the peer is gone")
            found += part
        return found

    def watch(self, lost: Callable[[], None]) -> None:
        """Call ``lost``, in a thread, once the peer is gone: between two loads nobody reads."""
        poll = select.poll()
        poll.register(self._connection, select.POLLRDHUP)

        def wait() -> None:
            poll.poll()
            lost()

        threading.Thread(target=wait, name="peer", daemon=True).start()


class Peers:
    """Node 0's lines to the others. ranks: of the whole engine."""

    def __init__(self, lines: Mapping[int, Line], ranks: int) -> None:
        self._lines = dict(lines)
        self._ranks = ranks

    @classmethod
    def gather(cls, address: str, nodes: int, ranks: int) -> "Peers":
        """Wait until all are there. Raises InputError where they are not, in MEET_SECONDS."""
        host, _, port = address.rpartition(":")
        lines: dict[int, Line] = {}
        with socket.create_server((host.strip("[]"), int(port))) as listener:
            listener.settimeout(MEET_SECONDS)
            while len(lines) < nodes - 1:
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    missing = sorted(set(range(1, nodes)) - lines.keys())
                    raise InputError(f"nodes {missing} of {nodes} did not come to {address}") from None
                connection.settimeout(None)
                line = Line(connection)
                node = int(line.head()["node"])
                if not 0 < node < nodes or node in lines:
                    raise InputError(f"a node says that it is {node} of {nodes}: start each with its own --node-rank")
                lines[node] = line
        return cls(lines, ranks)

    def watch(self, lost: Callable[[], None]) -> None:
        """See Line.watch."""
        for line in self._lines.values():
            line.watch(lost)

    @property
    def ranks(self) -> frozenset[int]:
        """Those of other nodes."""
        return frozenset(rank for _, rank in self._all())

    def _all(self) -> Iterator[tuple[Line, int]]:
        nodes = len(self._lines) + 1
        for node, line in sorted(self._lines.items()):
            for rank in share(self._ranks, nodes, node):
                yield line, rank

    def load(self, loader: str, payloads: Sequence[str]) -> None:
        """Let every node begin to run the loader in its ranks."""
        for line, rank in self._all():
            line.send({"op": "load", "rank": rank, "loader": loader, "payload": payloads[rank]})

    def take(self, mirrors: Mapping[int, Sequence[Tensor]]) -> None:
        """What the ranks' parameters are now, once their loaders have ended."""
        for line, rank in self._all():
            line.head()
            line.into(mirrors[rank])

    def put(self, mirrors: Mapping[int, Sequence[Tensor]]) -> None:
        """The whole model was changed: so are the ranks."""
        for line, rank in self._all():
            line.send({"op": "put", "rank": rank}, mirrors[rank])


def follow(
    address: str, node: int, modules: Mapping[int, nn.Module], run: Callable[[int, Any, Any], None]
) -> NoReturn:
    """What a node but the first does, until node 0 is gone. run: a loader in a rank, with what it is given."""
    line = Line(_meet(address))
    line.send({"node": node})
    while True:
        asked = line.head()
        rank = int(asked["rank"])
        parameters = parameters_of(modules[rank])
        if asked["op"] == "put":
            line.into(parameters)
            continue
        run(rank, loader_of(asked["loader"]), decode_named_tensors(asked["payload"]))
        line.send({"rank": rank}, parameters)


def parameters_of(module: nn.Module) -> list[Tensor]:
    """In the order of the rank's layout."""
    return [parameter.data for parameter in module.parameters()]


def leave() -> NoReturn:
    """A peer is gone, and with it this engine: all of its processes begin anew together."""
    sys.stderr.write("another node of this engine is gone: it ends\n")
    sys.stderr.flush()
    os._exit(1)


def _meet(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    until = time.monotonic() + MEET_SECONDS
    while True:
        try:
            return socket.create_connection((host.strip("[]"), int(port)), timeout=None)
        except OSError as error:
            if time.monotonic() > until:
                raise InputError(f"node 0 does not answer at {address}: {error}") from error
            time.sleep(0.1)


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.detach().flatten().view(torch.uint8).numpy().data)
