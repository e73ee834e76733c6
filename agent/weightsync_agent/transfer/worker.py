"""The transfer worker's process: one Mooncake engine, arenas mapped by path, no control logic, no state to lose.

Started by supervisor.py as ``python -m``, with the MC_* already in its environment, since Mooncake reads them when
it is loaded. It ends with its supervisor: by EOF on the pipe, and by the kernel's signal where the interpreter hangs.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import xxhash
from mooncake.engine import TransferEngine

from weightsync.cores import usable_cores
from weightsync.errors import TransferError
from weightsync_agent import failpoints
from weightsync_agent.transfer.codes import check
from weightsync_agent.transfer.frames import Message, pack, receive
from weightsync_agent.transfer.read import Reader
from weightsync_agent.transfer.registration import Registry
from weightsync_agent.transfer.runs import Placed
from weightsync_agent.transfer.window import Window
from weightsync_agent.transfer.write import Pump, Write

_PR_SET_PDEATHSIG = 1
DIGESTING = 8  # threads at most: what has landed last waits for nothing else, and each reads about 6 GB/s


class Worker:
    """Answers the supervisor's messages until the pipe ends."""

    def __init__(self, pipe: socket.socket, engine: Any, options: dict[str, Any]) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()
        self._engine = engine
        self._registry = Registry(engine)
        self._reader = Reader(engine, options["piece_bytes"])
        window = Window(options["peer_pieces"], options["peer_bytes"], options["piece_bytes"])
        self._pump = Pump(engine, window, self.send, poll_seconds=options["poll_seconds"])
        self._hashing = ThreadPoolExecutor(options["digest_threads"] or min(DIGESTING, usable_cores()), "digest")

    def send(self, message: Message) -> None:
        """From any thread. A supervisor that is gone ends the process."""
        try:
            with self._sending:
                self._pipe.sendall(pack(message))
        except OSError:
            os._exit(0)

    def run(self) -> None:
        """Until the supervisor is gone or says close."""
        self._pump.start()
        slow: dict[str, Callable[[Message], object]] = {
            "attach": lambda m: self._registry.attach(m["path"], m["payload"], m["nbytes"]),
            "detach": self._detach,
            "fence": self._fence,
            "digest": self._digest,
            "read": self._read,
            "fetch": self._fetch,
        }
        while (message := receive(self._pipe)) is not None and message["call"] != "close":
            match message["call"]:
                case "write":
                    self._write(message)
                case "drop":
                    self._pump.drop(message["id"])
                case "halt":
                    self._pump.halt()
                case call:
                    # A thread each: a slow registration must not keep a digest waiting, and an error that nobody
                    # foresaw reaches _broken instead of resting in an executor's future.
                    threading.Thread(target=self._answer, args=(message, slow[call]), daemon=True).start()

    def _answer(self, message: Message, call: Callable[[Message], object]) -> None:
        try:
            answer: Message = {"answer": message["id"], "value": call(message)}
        except (TransferError, OSError, MemoryError) as error:
            answer = {"answer": message["id"], "error": f"{error}"}
        self.send(answer)

    def _write(self, message: Message) -> None:
        number, path = message["id"], message["path"]
        buckets = [(offset, nbytes) for offset, nbytes in message["buckets"]]
        try:
            source = self._registry.address(path, buckets)
        except TransferError as error:
            self.send({"event": "end", "write": number, "failed": str(error), "lost": 0})
            return
        write = Write(number, message["session"], path, source, message["address"], buckets, runs=_runs(message))
        failpoints.later(partial(self._pump.add, write))

    def _detach(self, message: Message) -> None:
        path = message["path"]
        if count := self._pump.busy(path):
            raise TransferError(f"{path}: {count} writes from it are not terminal; its bytes may still be read")
        self._registry.detach(path)

    def _fence(self, message: Message) -> None:
        """End all that this worker writes, on RDMA: the device reads no unregistered memory.

        Submits to other peers get a moment to end by themselves; what is cut short is sent again by others.
        """
        self._pump.halt()
        self._pump.wait_for_others(message["session"], message["grace"])
        self._registry.unregister_all()

    def _read(self, message: Message) -> list[str]:
        buckets = [(offset, nbytes) for offset, nbytes in message["buckets"]]
        return self._reader.digest(message["session"], buckets, _runs(message))

    def _fetch(self, message: Message) -> None:
        """Read a run of another worker's arena into ours. After a failure bytes of it may still come in."""
        offset, nbytes = message["offset"], message["nbytes"]
        address = self._registry.address(message["path"], [(offset, nbytes)]) + offset
        code = self._engine.batch_transfer_sync_read(message["session"], [address], [message["address"]], [nbytes])
        check(code, f"reading {nbytes} bytes from {message['session']}")

    def _digest(self, message: Message) -> list[str]:
        buckets = [(offset, nbytes) for offset, nbytes in message["buckets"]]
        with self._registry.reading(message["path"], buckets) as payload:
            # The hash releases the GIL and keeps no view: threads scale, and the arena can be unmapped afterwards.
            def digest(bucket: tuple[int, int]) -> str:
                with payload[bucket[0] : bucket[0] + bucket[1]] as run:
                    failpoints.corrupt(run)
                    return xxhash.xxh3_128_hexdigest(run)

            return list(self._hashing.map(digest, buckets))


def _runs(message: Message) -> list[Placed]:
    return [Placed(*run) for run in message["runs"]]


def _end_with(parent: int) -> None:
    """Be killed when the supervisor's thread ends, even where every thread of ours is stuck in Mooncake."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _broken(args: threading.ExceptHookArgs) -> None:
    """A thread of ours failed: a worker that goes on without it would only stall. Its supervisor sees the end."""
    sys.__excepthook__(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
    os._exit(70)


def main(arguments: list[str]) -> None:
    """arguments: options as JSON (pipe, parent, host, transport, devices, and sizes of TransferSettings)."""
    options = json.loads(arguments[0])
    _end_with(options["parent"])
    threading.excepthook = _broken
    pipe = socket.socket(fileno=options["pipe"])
    engine = TransferEngine()
    transport = options["transport"]
    code = engine.initialize(options["host"], "P2PHANDSHAKE", transport, ",".join(options["devices"]))
    worker = Worker(pipe, engine, options)
    try:
        # After a failed initialize the other calls still say 0, then crash: nothing may follow it.
        check(code, f"initialising Mooncake over {transport} at {options['host']}")
    except TransferError as error:
        worker.send({"event": "unusable", "message": str(error)})
        os._exit(1)
    worker.send({"event": "ready", "port": engine.get_rpc_port()})
    worker.run()
    os._exit(0)  # destroying the engine holds the GIL and can wait for peers


if __name__ == "__main__":
    main(sys.argv[1:])
