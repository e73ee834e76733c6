"""The worker's process as the supervisor sees it: spawned, asked by messages, listened to, ended. No writes here.

``spawn`` and never ``fork``: a forked copy of a process with a live Mooncake engine hangs. What may go wrong is the
child's affair and costs the child only: Mooncake aborting, an interpreter frozen inside a call. Every wait here has
a deadline or ends with the process.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from weightsync.errors import TransferError
from weightsync_agent.threads import to_its_end
from weightsync_agent.transfer import frames
from weightsync_agent.transfer.frames import Message

log = structlog.get_logger(__name__)

MODULE = "weightsync_agent.transfer.worker"
LAST_WORDS = 6  # lines of the child's standard error that its death is reported with
STALLED = "Stalled"
DIED = "WorkerDied"


class Child:
    """One spawned process. ``dead`` resolves with the reason once the kernel has ended it."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        pipe: asyncio.StreamWriter,
        happened: Callable[[Message], None],
    ) -> None:
        self.name = name
        self.pid = process.pid
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process = process
        # Popen.kill() polls before it signals, and so steals the exit status from asyncio where the process has just
        # ended; a pidfd signals this process or none.
        self._pidfd = os.pidfd_open(process.pid)
        self._pipe = pipe
        self._happened = happened
        self._last_words: deque[str] = deque(maxlen=LAST_WORDS)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def spawn(
        cls,
        name: str,
        arguments: Callable[[int], str],
        environment: Mapping[str, str],
        happened: Callable[[Message], None],
    ) -> "Child":
        """arguments: the command line's argument, from the pipe's descriptor. happened: takes what is no answer."""
        ours, theirs = socket.socketpair()
        # The same imports as here, however this interpreter was told of them.
        path = os.pathsep.join(filter(None, sys.path))
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", MODULE, arguments(theirs.fileno()),
                    pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE, env={**environment, "PYTHONPATH": path},
                )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            process.kill()
            await to_its_end(process.wait())
            raise
        child = cls(name, process, writer, happened)
        listening = asyncio.create_task(child._listen(), name=f"{name}: log")
        reading = asyncio.create_task(child._read(reader, listening), name=f"{name}: messages")
        child._tasks = [listening, reading]
        return child

    def kill(self) -> None:
        """SIGKILL; ``dead`` resolves when it is over."""
        if not self.dead.done():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def ended(self) -> None:
        """Wait for the end."""
        await asyncio.shield(self.dead)
        await asyncio.gather(*self._tasks)

    def alive(self) -> None:
        """Raises TransferError with the reason of its end."""
        if self.dead.done():
            raise TransferError(self.dead.result(), reason=DIED, quiet=True)

    def number(self) -> int:
        """A new number for a call or a write."""
        self._number += 1
        return self._number

    def send(self, message: Message) -> None:
        """Not awaited: the child reads in a thread of its own, and messages are small against what they ask for."""
        if not self.dead.done():
            self._pipe.write(frames.pack(message))

    async def call(self, call: str, seconds: float, **arguments: object) -> Any:
        """The answer. Raises TransferError: it failed, it took longer than ``seconds``, or the child ended."""
        self.alive()
        number = self.number()
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        self.send({"call": call, "id": number, **arguments})
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError as error:
            raise TransferError(
                f"worker {self.name} did not answer {call} within {seconds:g} s", reason=STALLED
            ) from error
        finally:
            del self._calls[number]

    async def _read(self, reader: asyncio.StreamReader, listening: asyncio.Task[None]) -> None:
        while (message := await frames.read(reader)) is not None:
            if "answer" in message:
                self._answered(message)
            else:
                self._happened(message)
        # A child that closed its pipe is of no use, also where its process hangs on.
        self.kill()
        code = await self._process.wait()
        await asyncio.wait([listening])
        self._died(code)

    def _answered(self, message: Message) -> None:
        future = self._calls.get(message["answer"])
        if future is None or future.done():
            return  # its caller has given up
        if "error" in message:
            future.set_exception(TransferError(f"worker {self.name}: {message['error']}"))
        else:
            future.set_result(message["value"])

    async def _listen(self) -> None:
        """The child's standard error: Mooncake's only words on why a call failed."""
        if self._process.stderr is None:
            raise TransferError(f"worker {self.name} was started without a pipe for its standard error")
        while line := await self._process.stderr.readline():
            text = line.decode(errors="replace").rstrip()
            self._last_words.append(text)
            log.debug("transfer worker", worker=self.name, line=text)

    def _died(self, code: int) -> None:
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        words = f"; its last words: {' | '.join(self._last_words)}" if code > 0 and self._last_words else ""
        reason = f"worker {self.name} ended {how}{words}"
        log.info("transfer worker ended", worker=self.name, pid=self.pid, how=how)
        self._pipe.close()
        os.close(self._pidfd)
        self.dead.set_result(reason)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(TransferError(reason, reason=DIED))
        self._happened({"event": "dead", "message": reason})
