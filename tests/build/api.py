"""A test's own client of the API server: plain JSON over the standard library, so that no code under test is used."""

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

Json = dict[str, Any]
Value = TypeVar("Value")

APPLY = "application/apply-patch+yaml"
GROUP = "/apis/weightsync.io/v1alpha1"
DEADLINE = 60.0  # far more than is needed: a deadline that a busy machine can miss says nothing


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    status: int
    body: Json

    @property
    def message(self) -> str:
        """The sentence of a refusal."""
        return str(self.body.get("message", ""))


class Api:
    """One user of one API server on this machine: with a client certificate, or with a bearer token."""

    def __init__(self, url: str, authority: Path, pair: tuple[Path, Path] | None = None, token: str = "") -> None:
        self.url = url
        self._context = ssl.create_default_context(cafile=str(authority))
        if pair is not None:
            self._context.load_cert_chain(*pair)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def call(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Answer:
        """One request, whatever its answer."""
        status, text = self.raw(method, path, body, content)
        try:
            return Answer(status, json.loads(text))
        except ValueError:  # "404 page not found", before a CRD is served
            return Answer(status, {"message": text})

    def raw(self, method: str, path: str, body: Any = None, content: str = "application/json") -> tuple[int, str]:
        """One request; the answer as text."""
        connection = http.client.HTTPSConnection(self.url.removeprefix("https://"), context=self._context, timeout=10)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": content, **self.headers})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def get(self, path: str) -> Json:
        """The object; an AssertionError where there is none."""
        answer = self.call("GET", path)
        assert answer.status == HTTPStatus.OK, answer.message
        return answer.body

    def find(self, path: str) -> Json | None:
        """The object, or None."""
        answer = self.call("GET", path)
        return answer.body if answer.status == HTTPStatus.OK else None

    def create(self, path: str, body: Json) -> Json:
        """The created object."""
        answer = self.call("POST", path, body)
        assert answer.status == HTTPStatus.CREATED, answer.message
        return answer.body

    def apply(self, path: str, body: Json, manager: str) -> Json:
        """Server-side apply."""
        answer = self.call("PATCH", f"{path}?fieldManager={manager}&force=true", body, APPLY)
        assert answer.status in (HTTPStatus.OK, HTTPStatus.CREATED), answer.message
        return answer.body

    def merge(self, path: str, body: Json) -> Json:
        """Merge patch."""
        answer = self.call("PATCH", path, body, "application/merge-patch+json")
        assert answer.status == HTTPStatus.OK, answer.message
        return answer.body

    def delete(self, path: str) -> Json:
        """Delete at once."""
        answer = self.call("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
        assert answer.status == HTTPStatus.OK, answer.message
        return answer.body

    def history(self, path: str, since: str) -> list[Json]:
        """All events of a list since that resource version, up to now."""
        _, text = self.raw("GET", f"{path}?watch=1&timeoutSeconds=1&resourceVersion={since}")
        return [json.loads(line) for line in text.splitlines()]

    def writes(self, resource: str = r"weightsyncs|weightsyncslices|events|pods") -> int:
        """How many writes of those resources the server has served, whoever sent them."""
        _, text = self.raw("GET", "/metrics")
        pattern = re.compile(
            rf'^apiserver_request_total{{(?=[^}}]*resource="(?:{resource})")'
            r'(?=[^}]*verb="(?:POST|PUT|PATCH|APPLY|DELETE|DELETECOLLECTION)")[^}]*} (\S+)$',
            re.MULTILINE,
        )
        return int(sum(float(value) for value in pattern.findall(text)))


def eventually(what: str, read: Callable[[], Value | None], seconds: float = DEADLINE) -> Value:
    """The first value of ``read`` that is neither None nor false; fails with ``what`` after the deadline."""
    end = time.monotonic() + seconds
    while True:
        value = read()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}; last: {value!r}"
        time.sleep(0.05)
