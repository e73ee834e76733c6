"""HTTP over the Unix socket of the trainer's own agent. One Link is one connection, used by one thread at a time.

Every request of wire/local.py may be sent twice without harm, so one that met a connection that the agent had closed
meanwhile (it was idle, or the agent restarted) is sent again on a new one.
"""

import http.client
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from weightsync import names
from weightsync.errors import AgentUnavailable, PeerError, Refused
from weightsync.records import WireRecord
from weightsync.wire.v1 import Problem

Answer = TypeVar("Answer", bound=WireRecord)

PAUSE = 0.1  # seconds between two attempts to connect


class _UnixConnection(http.client.HTTPConnection):
    """http.client over a Unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Dial the path instead of host and port."""
        dialled = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        dialled.settimeout(self.timeout)
        try:
            dialled.connect(str(self._path))
        except OSError:
            dialled.close()
            raise
        self.sock = dialled


class Link:
    """A kept-alive connection to the agent's socket in ``directory``.

    timeout: seconds that an answer may take; patience: seconds to go on dialling while nobody listens;
    greet: called with the link right after each new connection, before anything else is sent on it.
    """

    def __init__(
        self, directory: Path, *, timeout: float, patience: float, greet: Callable[["Link"], None] | None = None
    ) -> None:
        self.path = directory / names.SOCKET
        self.timeout = timeout
        self.patience = patience
        self._greet = greet
        self._connection: http.client.HTTPConnection | None = None
        self._answered = False  # whether this connection has carried an answer: only then may it have gone stale

    def post(self, path: str, body: WireRecord, answer: type[Answer]) -> Answer:
        """Send and read the answer. Raises AgentUnavailable, Refused with the agent's own reason, or PeerError."""
        return answer.read(self._exchange("POST", path, body.model_dump_json().encode()), self._origin(path))

    def tell(self, path: str, body: WireRecord, *, timeout: float | None = None) -> None:
        """Send where the answer says nothing but yes. Raises as post()."""
        self._exchange("POST", path, body.model_dump_json().encode(), timeout)

    def get(self, path: str, answer: type[Answer], *, timeout: float) -> Answer:
        """Ask; the answer may take ``timeout`` seconds. Raises as post()."""
        return answer.read(self._exchange("GET", path, None, timeout), self._origin(path))

    def _origin(self, path: str) -> str:
        return f"the agent's answer to {path}"

    def _exchange(self, method: str, path: str, body: bytes | None, timeout: float | None = None) -> bytes:
        try:
            return self._once(method, path, body, timeout)
        except TimeoutError:
            self.close()  # the answer may still come, and would be taken for the next request's
            raise AgentUnavailable(
                f"the agent at {self.path} did not answer {method} {path} within {timeout or self.timeout:g} s: "
                "look at its log (another trainer rank may never have called publish())"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            stale = self._answered
            self.close()
            if stale:
                return self._exchange(method, path, body, timeout)
            raise AgentUnavailable(
                f"the agent at {self.path} broke off {method} {path} ({_word(error)}): look at its log"
            ) from error

    def _once(self, method: str, path: str, body: bytes | None, timeout: float | None) -> bytes:
        connection = self.connect()
        if connection.sock is not None:
            connection.sock.settimeout(timeout or self.timeout)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        data = response.read()
        self._answered = True
        if response.will_close:
            self.close()
        if response.status >= 400:
            raise _problem(method, path, response.status, data)
        return data

    def connect(self) -> http.client.HTTPConnection:
        """The connection, dialled and greeted on first use. Raises AgentUnavailable, or what the greeting met."""
        if self._connection is not None:
            return self._connection
        deadline = time.monotonic() + self.patience
        while True:
            connection = _UnixConnection(self.path, self.timeout)
            try:
                connection.connect()
                break
            except OSError as error:
                if time.monotonic() + PAUSE > deadline:
                    raise AgentUnavailable(
                        f"no agent listens at {self.path} ({_word(error)}): it is the sidecar container of this pod; "
                        f"mount its volume here, or set {names.DIRECTORY_ENV} to where it is mounted"
                    ) from error
            time.sleep(PAUSE)
        self._connection = connection
        if self._greet is not None:
            try:
                self._greet(self)
            except PeerError:
                self.close()  # not greeted: nothing else may be sent on it
                raise
        return self._connection

    def close(self) -> None:
        """End the connection; the next request makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _word(error: Exception) -> str:
    """What happened, for a sentence."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _problem(method: str, path: str, status: int, data: bytes) -> PeerError:
    """The agent's refusal as an exception; what is no Problem is not passed on as one."""
    try:
        problem = Problem.model_validate_json(data)
    except ValueError:
        return PeerError(f"the agent answered {method} {path} with status {status} and no reason")
    if status >= 500:
        return PeerError(f"the agent failed at {method} {path}: {problem.message}")
    return Refused(problem.message, reason=problem.reason, status=status)
