"""A few calls to the API server, over the standard library's HTTP client."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any, cast

from tools.cluster.errors import ClusterError
from tools.cluster.pki import Pair

TIMEOUT_SECONDS = 5.0


class Client:
    """One user of one API server on this machine."""

    def __init__(self, port: int, authority: Path, user: Pair) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.load_cert_chain(user.certificate, user.key)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Send one request. Returns status and body.

        Raises:
            OSError: nobody answers.
        """
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._port, context=self._context, timeout=TIMEOUT_SECONDS
        )
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, body=data, headers={"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except http.client.HTTPException as error:
            raise OSError(f"the API server broke off its answer: {error!r}") from error
        finally:
            connection.close()

    def get(self, path: str) -> dict[str, Any]:
        """Return the object at `path`.

        Raises:
            ClusterError: the API server refuses.
            OSError: nobody answers.
        """
        status, body = self.call("GET", path)
        if status != http.HTTPStatus.OK:
            raise ClusterError(f"GET {path} is answered with status {status}: {body}")
        return cast(dict[str, Any], json.loads(body))

    def is_ready(self) -> bool:
        """Whether the API server says that it is ready."""
        try:
            return self.call("GET", "/readyz")[0] == http.HTTPStatus.OK
        except OSError:
            return False

    def has(self, path: str) -> bool:
        """Whether there is an object at `path`."""
        try:
            return self.call("GET", path)[0] == http.HTTPStatus.OK
        except OSError:
            return False
