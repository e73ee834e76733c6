"""The engine's HTTP API, called as it is: no adapter between. And how an answer is noted down."""

import json
from typing import Any, NamedTuple, Self

import aiohttp

Json = dict[str, Any]


class Seen(NamedTuple):
    """An answer: status, and the body as JSON, or as text where it is none."""

    status: int
    body: Any

    def note(self, *fields: str) -> Json:
        """The answer for the record: HTTP status, and for each field (``a.b``: nested) what kind of value it has.

        Booleans are kept, everything else is named by its type: texts and numbers differ from run to run.
        """
        if not fields:
            return {
                "http": self.status,
                "body": "text" if isinstance(self.body, str) and self.body else kind(self.body),
            }
        return {"http": self.status, **{field: kind(self.at(field)) for field in fields}}

    def at(self, field: str) -> Any:
        """A nested field, None where there is none."""
        value = self.body
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value


def kind(value: Any) -> Any:
    """What is kept of a value."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return [kind(value[0])] if value else []
    return type(value).__name__


class Api:
    """One engine. Keys: what control calls and what other calls are made with, "" for none."""

    def __init__(self, url: str, admin: str = "", api: str = "") -> None:
        self.url, self._admin, self._api = url.rstrip("/"), admin, api
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str, **options: Any) -> Seen:
        """GET."""
        return await self.call("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> Seen:
        """POST of a JSON body; a str is sent as it is."""
        return await self.call("POST", path, body, **options)

    async def call(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, seconds: float = 120.0
    ) -> Seen:
        """Any call. key: instead of the one that the path needs. Raises TimeoutError after ``seconds``."""
        open_to_all = path.startswith(("/generate", "/model_info", "/server_info", "/health"))
        key = key if key is not None else self._api if open_to_all else self._admin or self._api
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        data = body if isinstance(body, str) or body is None else json.dumps(body)
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with self._session.request(
            method, self.url + path, data=data, headers=headers, timeout=timeout
        ) as reply:
            text = await reply.text(errors="replace")
            try:
                return Seen(reply.status, json.loads(text) if text else None)
            except ValueError:
                return Seen(reply.status, text)
