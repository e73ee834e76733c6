"""HTTP over a Unix socket in threads: the thin I/O under the fake agent."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

# Method, path with query, body -> status and JSON; None: break the connection off instead of answering.
Answer = Callable[[str, str, bytes], tuple[int, bytes] | None]


class SocketServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens until stop(), which also ends every open connection, as the end of a process would."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, path: Path, answer: Answer) -> None:
        path.unlink(missing_ok=True)
        super().__init__(str(path), _Handler)
        self.answer = answer
        self._path = path
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection, then serve it in a thread."""
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A connection ended."""
        self._open.discard(request)
        super().shutdown_request(request)

    def stop(self) -> None:
        """Stop listening and break every connection off."""
        self.shutdown()
        self._thread.join()
        self._path.unlink(missing_ok=True)
        self.server_close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):  # its thread may have closed it meanwhile
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SocketServer

    def do_POST(self) -> None:
        """A body, then an answer."""
        self._serve(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def do_GET(self) -> None:
        """No body."""
        self._serve(b"")

    def _serve(self, body: bytes) -> None:
        answer = self.server.answer(self.command, self.path, body)
        if answer is None:
            self.close_connection = True
            return
        status, data = answer
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the caller no longer waits
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing on stderr."""
